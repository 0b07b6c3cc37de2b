//! Brings a cluster up, step by step, each with a deadline and a named culprit.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::{Api, Client};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::{Instant, sleep, timeout},
};

use crate::{
    cgroup, client, control_plane, images,
    layout::{API_SERVICE_IP, Layout, NODE_IP, NODE_NAME},
    netns, node, pki,
    process::{Component, Name},
};

/// How long the whole start may take. It takes 4 s on an idle machine with two cores.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// The pause between two looks at something that isn't there yet.
const LOOK: Duration = Duration::from_millis(50);

/// Creates what must exist before any process: directories, credentials, namespaces, cgroup.
///
/// # Errors
/// When a binary is missing or a step fails.
pub fn prepare(layout: &Layout) -> Result<()> {
    for name in [Name::KubeApiserver, Name::Kubelet] {
        let file = layout.binaries.join(name.as_str());
        if !file.exists() {
            bail!("failed to find {} (run `make setup`)", file.display());
        }
    }
    for folder in [&layout.state, &layout.logs] {
        fs::create_dir_all(folder)
            .with_context(|| format!("failed to create {}", folder.display()))?;
    }
    pki::write(layout)?;
    netns::create(layout)?;
    cgroup::create(&layout.cgroup())
}

/// Starts every component and waits until a pod would run. Expects to be in the outside namespace.
/// What was started is in `components` even after an error.
///
/// # Errors
/// When a component ends or something isn't ready in time; the error says which, with its log's end.
pub async fn start(layout: &Layout, components: &mut Vec<Component>) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    launch(layout, components, Name::Etcd, control_plane::etcd(layout))?;
    launch(
        layout,
        components,
        Name::Containerd,
        node::containerd(layout)?,
    )?;
    launch(
        layout,
        components,
        Name::KubeApiserver,
        control_plane::apiserver(layout),
    )?;

    let socket = layout.containerd_socket();
    until(
        components,
        deadline,
        Name::Containerd,
        "listens",
        async || UnixStream::connect(&socket).await.is_ok(),
    )
    .await?;
    let importing = {
        let layout = layout.clone();
        tokio::task::spawn_blocking(move || images::import_all(&layout))
    };
    let client = client::connect(&layout.kubeconfig()).await?;
    until(
        components,
        deadline,
        Name::KubeApiserver,
        "is ready",
        async || is_api_ready(&client).await,
    )
    .await?;

    launch(
        layout,
        components,
        Name::KubeControllerManager,
        control_plane::controller_manager(layout),
    )?;
    launch(layout, components, Name::Kubelet, node::kubelet(layout)?)?;
    launch(
        layout,
        components,
        Name::KubeScheduler,
        control_plane::scheduler(layout)?,
    )?;
    launch(
        layout,
        components,
        Name::KubeProxy,
        node::kube_proxy(layout)?,
    )?;

    importing.await.context("failed to import images")??;
    until(
        components,
        deadline,
        Name::Kubelet,
        "made the node Ready",
        async || is_node_ready(&client).await,
    )
    .await?;
    until(
        components,
        deadline,
        Name::KubeProxy,
        "forwards",
        async || is_proxy_ready().await,
    )
    .await?;
    until(
        components,
        deadline,
        Name::KubeControllerManager,
        "made the default ServiceAccount",
        async || {
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
            accounts.get_metadata("default").await.is_ok()
        },
    )
    .await
}

/// Whether the API server says that it is ready.
pub async fn is_api_ready(client: &Client) -> bool {
    let request = http::Request::get("/readyz")
        .body(Vec::new())
        .expect("a constant request must be valid");
    client.request_text(request).await.is_ok()
}

fn launch(
    layout: &Layout,
    into: &mut Vec<Component>,
    name: Name,
    command: std::process::Command,
) -> Result<()> {
    into.push(Component::start(name, command, layout.log(name.as_str()))?);
    Ok(())
}

/// Waits until `ready` says so, while all components live.
async fn until(
    components: &mut [Component],
    deadline: Instant,
    culprit: Name,
    what: &str,
    mut ready: impl AsyncFnMut() -> bool,
) -> Result<()> {
    loop {
        for component in components.iter_mut() {
            if let Some(status) = component.ended()? {
                bail!(
                    "{}",
                    component.explain(&format!("ended at start ({status})"))
                );
            }
        }
        if timeout(Duration::from_secs(2), ready())
            .await
            .unwrap_or(false)
        {
            return Ok(());
        }
        if Instant::now() > deadline {
            let component = components
                .iter()
                .find(|component| component.name() == culprit);
            let text =
                component.map(|component| component.explain(&format!("never came to: {what}")));
            bail!("{}", text.unwrap_or_default());
        }
        sleep(LOOK).await;
    }
}

/// Ready, and the taint of a node that wasn't is gone: only then does a pod get scheduled.
async fn is_node_ready(client: &Client) -> bool {
    let nodes: Api<Node> = Api::all(client.clone());
    let Ok(node) = nodes.get(NODE_NAME).await else {
        return false;
    };
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.is_empty()
        && conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// kube-proxy's own health, and a service's address that it must have programmed answers.
async fn is_proxy_ready() -> bool {
    let healthy = async {
        let mut stream = TcpStream::connect((NODE_IP, 10256)).await.ok()?;
        stream
            .write_all(b"GET /healthz HTTP/1.0\r\n\r\n")
            .await
            .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        text.split(' ').nth(1).map(|code| code == "200")
    };
    healthy.await.unwrap_or(false) && TcpStream::connect((API_SERVICE_IP, 443)).await.is_ok()
}

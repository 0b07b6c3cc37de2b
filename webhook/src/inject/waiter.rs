//! The container and the volumes that a gated pod gets, as the pod spells them.
//!
//! Clean under Pod Security `restricted`; no network is needed to start.

use serde::Serialize;
use sidecar::contract::{
    CONTAINER, ENV_CA, ENV_CONFIRMER, IMAGE_BINARY_PATH, MOUNT_PATH, TOKEN_AUDIENCE,
    TOKEN_EXPIRATION_SECONDS, TOKEN_MOUNT_PATH, TOKEN_VOLUME, VOLUME, flag,
};

use self::fit::WaiterResources;
use super::config::InjectConfig;
use super::view::Spec;

mod fit;

/// Size of the volume: the kubelet evicts a pod that outgrows it.
const VOLUME_SIZE: &str = "16Mi";

/// A volume's place in a container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeMount {
    name: &'static str,
    mount_path: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    read_only: bool,
}

/// The mount of a gated container. Read-only: nobody but the waiter may fill the volume or replace its binary.
pub(super) const GATED_MOUNT: VolumeMount = VolumeMount {
    name: VOLUME,
    mount_path: MOUNT_PATH,
    read_only: true,
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaiterContainer<'a> {
    name: &'static str,
    image: &'a str,
    image_pull_policy: &'static str,
    restart_policy: &'static str,
    command: [&'static str; 1],
    args: Vec<String>,
    env: [EnvVar<'a>; 2],
    lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<WaiterResources>,
    security_context: WaiterSecurityContext,
    volume_mounts: [VolumeMount; 2],
}

#[derive(Debug, Serialize)]
struct EnvVar<'a> {
    name: &'static str,
    value: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    post_start: PostStart,
}

#[derive(Debug, Serialize)]
struct PostStart {
    exec: Exec,
}

#[derive(Debug, Serialize)]
struct Exec {
    command: [&'static str; 2],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WaiterSecurityContext {
    allow_privilege_escalation: bool,
    capabilities: Capabilities,
    read_only_root_filesystem: bool,
    run_as_non_root: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_as_user: Option<i64>,
    seccomp_profile: SeccompProfile,
}

#[derive(Debug, Serialize)]
struct Capabilities {
    drop: [&'static str; 1],
}

#[derive(Debug, Serialize)]
struct SeccompProfile {
    #[serde(rename = "type")]
    kind: &'static str,
}

/// The sidecar for this pod.
pub(super) fn container<'a>(
    spec: &Spec<'_>,
    args: Vec<String>,
    config: &'a InjectConfig,
) -> WaiterContainer<'a> {
    WaiterContainer {
        name: CONTAINER,
        image: &config.waiter_image,
        image_pull_policy: "IfNotPresent",
        restart_policy: "Always",
        command: [IMAGE_BINARY_PATH],
        args,
        env: [
            EnvVar {
                name: ENV_CONFIRMER,
                value: &config.confirmer,
            },
            EnvVar {
                name: ENV_CA,
                value: &config.ca_pem,
            },
        ],
        lifecycle: Lifecycle {
            post_start: PostStart {
                exec: Exec {
                    command: [IMAGE_BINARY_PATH, flag::READY],
                },
            },
        },
        resources: fit::resources(spec),
        security_context: WaiterSecurityContext {
            allow_privilege_escalation: false,
            capabilities: Capabilities { drop: ["ALL"] },
            read_only_root_filesystem: true,
            run_as_non_root: true,
            run_as_user: fit::run_as_user(spec),
            seccomp_profile: SeccompProfile {
                kind: "RuntimeDefault",
            },
        },
        volume_mounts: [
            VolumeMount {
                name: VOLUME,
                mount_path: MOUNT_PATH,
                read_only: false,
            },
            VolumeMount {
                name: TOKEN_VOLUME,
                mount_path: TOKEN_MOUNT_PATH,
                read_only: true,
            },
        ],
    }
}

/// A volume of ours.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Volume {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    empty_dir: Option<EmptyDir>,
    #[serde(skip_serializing_if = "Option::is_none")]
    projected: Option<Projected>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EmptyDir {
    medium: &'static str,
    size_limit: &'static str,
}

#[derive(Debug, Serialize)]
struct Projected {
    sources: [Source; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    service_account_token: ServiceAccountToken,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceAccountToken {
    audience: &'static str,
    expiration_seconds: u32,
    path: &'static str,
}

/// The shared volume (in memory: no `noexec` of the kubelet's directory, no eviction of nodes' scale-down) and the
/// waiter's own token.
pub(super) fn volumes() -> [Volume; 2] {
    let token = ServiceAccountToken {
        audience: TOKEN_AUDIENCE,
        expiration_seconds: TOKEN_EXPIRATION_SECONDS,
        path: "token",
    };
    [
        Volume {
            name: VOLUME,
            empty_dir: Some(EmptyDir {
                medium: "Memory",
                size_limit: VOLUME_SIZE,
            }),
            projected: None,
        },
        Volume {
            name: TOKEN_VOLUME,
            empty_dir: None,
            projected: Some(Projected {
                sources: [Source {
                    service_account_token: token,
                }],
            }),
        },
    ]
}

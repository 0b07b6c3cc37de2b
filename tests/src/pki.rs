//! Credentials of one cluster: its certificate authority, the service-account key and a kubeconfig
//! with a token for each component.

use std::{fs, net::IpAddr, process::Command};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use serde_json::json;

use crate::{
    layout::{API_SERVER, API_SERVICE_IP, Layout, NODE_IP, NODE_NAME},
    process::check,
};

/// User and group of each kubeconfig, as the API server's built-in roles expect them.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    (
        "kube-controller-manager",
        "system:kube-controller-manager",
        "",
    ),
    ("kube-scheduler", "system:kube-scheduler", ""),
    ("kube-proxy", "system:kube-proxy", ""),
    ("kubelet", "system:node:node", "system:nodes"),
];

/// Writes all credentials into the state directory.
///
/// # Errors
/// When a key can't be made or a file can't be written.
pub fn write(layout: &Layout) -> Result<()> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "prestop-gate test cluster");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    put(layout, "ca.crt", &authority.pem())?;

    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    issue(
        layout,
        &authority,
        "apiserver",
        &names,
        &[NODE_IP.into(), API_SERVICE_IP.into()],
    )?;
    issue(
        layout,
        &authority,
        "kubelet",
        &[NODE_NAME],
        &[NODE_IP.into()],
    )?;

    // RSA, because that is what nearly every real cluster signs service-account tokens with.
    let key = layout.state.join("service-account.key");
    check(
        Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(&key)
            .arg("2048"),
    )?;

    let mut tokens = Vec::new();
    for (name, user, groups) in USERS {
        let token =
            fs::read_to_string("/proc/sys/kernel/random/uuid").context("failed to draw a token")?;
        let token = token.trim();
        tokens.push(format!("{token},{user},{user},{groups}\n"));
        put(
            layout,
            &format!("{name}.kubeconfig"),
            &kubeconfig(layout, name, token),
        )?;
    }
    put(layout, "tokens.csv", &tokens.concat())
}

fn issue(
    layout: &Layout,
    authority: &CertifiedIssuer<'_, KeyPair>,
    file: &str,
    names: &[&str],
    addresses: &[IpAddr],
) -> Result<()> {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut leaf = CertificateParams::new(names)?;
    leaf.distinguished_name.push(DnType::CommonName, file);
    leaf.subject_alt_names
        .extend(addresses.iter().map(|&address| SanType::IpAddress(address)));
    let key = KeyPair::generate()?;
    put(
        layout,
        &format!("{file}.crt"),
        &leaf.signed_by(&key, authority)?.pem(),
    )?;
    put(layout, &format!("{file}.key"), &key.serialize_pem())
}

fn kubeconfig(layout: &Layout, user: &str, token: &str) -> String {
    // JSON is YAML, so kubectl and the components read it as well.
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": API_SERVER, "certificate-authority": layout.ca()}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    });
    format!("{text:#}\n")
}

fn put(layout: &Layout, name: &str, text: &str) -> Result<()> {
    let file = layout.state.join(name);
    fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))
}

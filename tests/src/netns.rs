//! The two network namespaces of a cluster, joined by a veth pair.
//!
//! Nothing leaves the machine and nothing reaches in: the pair is the only link either has.
//! Namespaces are entered with `nsenter`, not `ip netns exec`, which remounts `/sys` and so hides
//! the cgroups from the kubelet.

use std::{fs::File, os::fd::AsFd, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    layout::{Layout, NODE_IP, OUTSIDE_IP, POD_AND_SERVICE_RANGE, SERVICE_RANGE},
    process::check,
};

/// The file that keeps the namespace `name` alive.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

/// A command that runs `program` in the namespace `name`.
pub fn command(name: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", path(name).display()))
        .arg("--")
        .arg(program);
    command
}

/// Moves the calling thread, and what it starts from now on, into the namespace `name`.
///
/// # Errors
/// When there is no such namespace, or the process isn't root.
pub fn enter(name: &str) -> Result<()> {
    let file = File::open(path(name))
        .with_context(|| format!("failed to open network namespace {name}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("failed to enter network namespace {name}"))
}

/// Creates both namespaces with addresses and routes.
///
/// # Errors
/// When `ip` or `iptables` fails; what it printed is in the error.
pub fn create(layout: &Layout) -> Result<()> {
    let (node, out) = (layout.node_netns(), layout.outside_netns());
    for name in [&node, &out] {
        check(Command::new("ip").args(["netns", "add", name]))?;
    }
    ip(
        &node,
        &format!("link add name eth0 type veth peer name eth0 netns {out}"),
    )?;
    for (name, own, other) in [(&node, NODE_IP, OUTSIDE_IP), (&out, OUTSIDE_IP, NODE_IP)] {
        ip(name, "link set dev lo up")?;
        ip(name, &format!("address add {own}/24 dev eth0"))?;
        ip(name, "link set dev eth0 up")?;
        // The node routes for its pods. The outside has no default route, and because it forwards
        // it says so: an image that isn't there fails at once, not after a timeout.
        check(command(name, "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]))?;
        if name == &node {
            ip(name, &format!("route add default via {other}"))?;
        } else {
            ip(
                name,
                &format!("route add {POD_AND_SERVICE_RANGE} via {other}"),
            )?;
        }
    }
    // kube-proxy answers only for services that exist. Without this rule packets to any other
    // cluster IP would bounce between the namespaces until their TTL ends.
    let reject = ["-A", "FORWARD", "-d", SERVICE_RANGE, "-j", "REJECT"];
    check(command(&node, "iptables").args(reject))
}

/// Deletes both namespaces. What isn't there is no error.
///
/// # Errors
/// When `ip` fails.
pub fn delete(layout: &Layout) -> Result<()> {
    for name in [layout.node_netns(), layout.outside_netns()] {
        if path(&name).exists() {
            check(Command::new("ip").args(["netns", "delete", &name]))?;
        }
    }
    Ok(())
}

fn ip(namespace: &str, arguments: &str) -> Result<()> {
    check(
        Command::new("ip")
            .args(["-n", namespace])
            .args(arguments.split(' ')),
    )
}

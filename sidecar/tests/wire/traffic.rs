//! What the waiter reports of its pod's inbound connections: real ones, in a network namespace of the test's own.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use sidecar::contract::{ENV_CA, ENV_CONFIRMER, Traffic, UNKNOWN_PORT};
use socket2::{Domain, Socket, Type};

use crate::confirmer::{Confirmer, Reply, hold};
use crate::pod::{Hook, Pod, eventually, signal};

/// Set inside the namespace.
const INSIDE: &str = "WIRE_TESTS_NAMESPACE";
/// The pod's addresses are `.1`, its clients' are `.2`.
const SET_UP: &str = "ip link set lo up && ip addr add 10.9.0.1/24 dev lo && ip addr add 10.9.0.2/24 dev lo && \
    ip addr add fd09::1/64 dev lo nodad && ip addr add fd09::2/64 dev lo nodad && exec \"$0\" \"$@\"";
const CLIENT: &str = "10.9.0.2:0";

/// Runs the calling test again, alone, in a new network namespace, which ends with it; true in there.
fn in_own_namespace() -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let output = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", SET_UP])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", thread.name().unwrap(), "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{errors}"
    );
    false
}

/// A hold that goes on and on, and the questions that are asked in it.
struct Held {
    confirmer: Confirmer,
    pod: Pod,
    _hook: Hook,
}

impl Held {
    /// Begins a hold, of a waiter that this command line runs.
    fn begin(runner: &[&str], args: &[&str]) -> Self {
        let confirmer = Confirmer::start(|question| match question.number {
            0 => Reply::Answer(hold(60.0)),
            _ => Reply::After(Duration::from_millis(200), hold(60.0)),
        });
        let mut pod = Pod::new();
        let waiter = pod.waiter_command();
        let mut command = Command::new(runner[0]);
        command
            .args(&runner[1..])
            .arg(waiter.get_program())
            .args(waiter.get_args())
            .args(["--max-wait", "60"])
            .args(args)
            .env(ENV_CONFIRMER, confirmer.address.to_string())
            .env(ENV_CA, &confirmer.ca);
        pod.spawn(command);
        let hook = pod.hook::<&str>(&["--max-wait", "60"], &[]);
        eventually("the first question", || confirmer.holds().pop());
        Self {
            confirmer,
            pod,
            _hook: hook,
        }
    }

    /// Begins a hold of a waiter without any capability, as in a pod.
    fn begin_in_pod() -> Self {
        let bare = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
        Self::begin(&bare, &[])
    }

    /// A question that was asked after this was called.
    fn question(&self) -> serde_json::Value {
        let asked = self.confirmer.holds().len();
        // The next one may have been on its way.
        eventually("the next question", || {
            self.confirmer.holds().get(asked + 1).cloned()
        })
        .body
    }

    fn report(&self) -> Traffic {
        serde_json::from_value(self.question()["traffic"].clone()).unwrap()
    }

    /// Waits until that many connections were reported in all, and then that there are no more.
    fn reports(&self, connections: u32) -> BTreeMap<u16, u32> {
        let sums = |traffic: Traffic| -> BTreeMap<u16, u32> {
            let ports = traffic.new_connections.into_iter();
            ports
                .map(|(port, counts)| (port, counts.iter().sum()))
                .collect()
        };
        let enough = |sums: &BTreeMap<u16, u32>| sums.values().sum::<u32>() >= connections;
        eventually("the connections' report", || {
            Some(sums(self.report())).filter(enough)
        });
        // Two more dumps, and the counter's comparison.
        std::thread::sleep(Duration::from_millis(2500));
        sums(self.report())
    }
}

/// Who closes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    ClosesFirst,
    ClosesLast,
    /// It closes last, and serves one client after the other: faster.
    InTurn,
}

/// Serves for the rest of the test.
fn listen(address: &str, server: Server) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let bound = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut serve = move || {
                if server == Server::ClosesFirst {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                let _ = stream.read_to_end(&mut Vec::new());
            };
            if server == Server::InTurn {
                serve();
            } else {
                std::thread::spawn(serve);
            }
        }
    });
    bound
}

fn connect(from: &str, to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().unwrap();
    let from: SocketAddr = from.parse().unwrap();
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// A connection that ends at once, in the order that the server wants.
fn call(from: &str, to: &str, server: Server) {
    let mut stream = connect(from, to);
    if server == Server::ClosesFirst {
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn each_inbound_connection_is_reported_once_by_its_port() {
    if !in_own_namespace() {
        return;
    }
    listen("[::]:8080", Server::ClosesLast);
    listen("10.9.0.1:8081", Server::ClosesFirst);
    listen("[fd09::1]:8082", Server::ClosesLast);
    let before = connect(CLIENT, "10.9.0.1:8080");
    let held = Held::begin_in_pod();
    let began = Instant::now();
    for _ in 0..100 {
        call(CLIENT, "10.9.0.1:8080", Server::ClosesLast);
    }
    let each = began.elapsed() / 100;
    assert!(each < Duration::from_millis(5), "not short: {each:?}");
    for _ in 0..30 {
        call(CLIENT, "10.9.0.1:8081", Server::ClosesFirst);
        call("[fd09::2]:0", "[fd09::1]:8082", Server::ClosesLast);
        // Not from outside, each in its own way.
        call("127.0.0.1:0", "127.0.0.1:8080", Server::ClosesLast);
        call("127.0.0.6:0", "10.9.0.1:8080", Server::ClosesLast);
        call("[::1]:0", "[::1]:8080", Server::ClosesLast);
        call("10.9.0.1:0", "10.9.0.1:8080", Server::ClosesLast);
    }
    let lasting = connect("[fd09::2]:0", "[fd09::1]:8080");
    let expected = BTreeMap::from([(8080, 101), (8081, 30), (8082, 30)]);
    assert_eq!(held.reports(161), expected);
    drop((before, lasting));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(held.reports(161), expected, "their ends aren't new");
    let log = held.pod.log();
    assert!(!log.contains("aren't watched"), "{log}");
}

#[test]
fn connections_that_the_waiter_could_not_hear_of_are_told_by_the_kernels_count() {
    if !in_own_namespace() {
        return;
    }
    listen("10.9.0.1:8080", Server::InTurn);
    let mut held = Held::begin_in_pod();
    assert!(held.report().new_connections.is_empty());
    let waiter = held.pod.waiter().id();
    // More than the kernel's queue takes while nobody reads.
    signal(waiter, "STOP");
    for port in 20_000..26_000 {
        // With a port of its own: to find a free one takes the kernel ever longer.
        call(&format!("10.9.0.2:{port}"), "10.9.0.1:8080", Server::InTurn);
    }
    signal(waiter, "CONT");
    let reported = held.reports(6000);
    let unknown = reported.get(&UNKNOWN_PORT).copied().unwrap_or_default();
    assert!(unknown > 1000, "{reported:?}");
    assert_eq!(
        reported,
        BTreeMap::from([(UNKNOWN_PORT, unknown), (8080, 6000 - unknown)])
    );
    call(CLIENT, "10.9.0.1:8080", Server::InTurn);
    assert_eq!(held.reports(6001)[&8080], 6001 - unknown, "it hears again");
}

#[test]
fn age_of_the_last_byte_grows_until_the_next_one() {
    if !in_own_namespace() {
        return;
    }
    listen("[::]:8080", Server::ClosesLast);
    listen("10.9.0.1:8081", Server::ClosesLast);
    let mut client = connect(CLIENT, "10.9.0.1:8080");
    let _quiet = connect(CLIENT, "10.9.0.1:8081");
    let mut own = connect("127.0.0.1:0", "127.0.0.1:8080");
    client.write_all(b"a").unwrap();
    let held = Held::begin_in_pod();
    let age = |port: u16| held.report().last_byte_seconds[&port];
    eventually("two quiet seconds", || (age(8080) > 2.0).then_some(()));
    let first = age(8080);
    std::thread::sleep(Duration::from_secs(1));
    own.write_all(b"b").unwrap();
    let second = age(8080);
    assert!(second >= first + 1.0, "{first} {second}");
    assert!(second < first + 4.0, "{first} {second}");
    client.write_all(b"c").unwrap();
    let third = age(8080);
    assert!(third < second && third < 1.9, "{third}");
    assert!(age(8081) > second);
    drop(client);
    eventually("the end of the connection", || {
        (!held.report().last_byte_seconds.contains_key(&8080)).then_some(())
    });
}

#[test]
fn pod_that_listens_nowhere_reports_that_nothing_came() {
    if !in_own_namespace() {
        return;
    }
    let held = Held::begin_in_pod();
    // The confirmer of the tests listens on loopback.
    let (first, second) = (held.report(), held.report());
    let empty = Traffic {
        watched_seconds: second.watched_seconds,
        ..Traffic::default()
    };
    assert_eq!(second, empty);
    assert!(second.watched_seconds > first.watched_seconds);
}

#[test]
fn pod_with_its_nodes_network_reports_nothing_and_is_held() {
    let flags = [
        "--host-network",
        "--probes",
        "8080:6",
        "--probes",
        "9090:0.5",
    ];
    let held = Held::begin(&["env"], &flags);
    let question = held.question();
    assert_eq!(question.get("traffic"), None);
    assert_eq!(question["params"]["hostNetwork"], true);
    let probes = serde_json::json!({"8080": 6.0, "9090": 0.5});
    assert_eq!(question["params"]["probesPerMinute"], probes);
    held.pod.logged(
        "Inbound connections aren't watched in this hold error=\"the pod has its node's network\"",
    );
    assert_eq!(held.pod.log().matches("aren't watched").count(), 1);
}

#[test]
fn pod_whose_kernel_cannot_be_asked_reports_nothing_and_is_held() {
    let hidden = [
        "unshare",
        "--mount",
        "--",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$0\" \"$@\"",
    ];
    let held = Held::begin(&hidden, &[]);
    assert_eq!(held.question().get("traffic"), None);
    held.pod
        .logged("Inbound connections aren't watched in this hold error=");
    held.pod.logged("failed to read /proc/thread-self/net/snmp");
    assert_eq!(held.pod.log().matches("aren't watched").count(), 1);
}

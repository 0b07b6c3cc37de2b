//! Whoever talks to the socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::confirmer::{Confirmer, Reply, go};
use crate::pod::{FALLBACK, Pod, eventually, signal};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn garbage_on_the_socket_hurts_nobody() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::with(&confirmer);
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![b'x'; 1 << 20],
        vec![0; 100],
        b"{\"type\":\"hello\",\"protocol\":1,\"container\":\"a\"}\n\xff\n".to_vec(),
        b"{\"type\":\"hello\"}\n".to_vec(),
    ] {
        let mut stream = UnixStream::connect(pod.volume().join("sock")).unwrap();
        stream.set_read_timeout(Some(ms(10_000))).unwrap();
        let _ = stream.write_all(&garbage);
        let closed = std::iter::from_fn(|| match stream.read(&mut [0; 512]) {
            Ok(0) => None,
            Ok(_) => Some(true),
            Err(error) => (error.kind() == std::io::ErrorKind::WouldBlock).then_some(false),
        });
        assert!(
            closed.take(10).all(|read| read),
            "the connection must be closed"
        );
    }
    pod.plain_hook().ends_after(ms(0));
    assert!(pod.waiter().try_wait().unwrap().is_none());
}

#[test]
fn hooks_get_their_turn_after_a_flood_of_idle_connections() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let pod = Pod::with(&confirmer);
    let flood: Vec<_> = (0..200)
        .filter_map(|_| UnixStream::connect(pod.volume().join("sock")).ok())
        .collect();
    pod.logged("Turned connections away");
    let said = pod.log().matches("Turned connections away").count();
    assert!(said < 5, "not once for each: {said}");
    pod.plain_hook().ends_after(FALLBACK);
    drop(flood);
    pod.plain_hook().ends_after(ms(0));
}

/// A listener that accepts nothing, and the connections that fill its backlog.
fn full_backlog(path: &Path) -> (Socket, Vec<Socket>) {
    let address = SockAddr::unix(path).unwrap();
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&address).unwrap();
    listener.listen(1).unwrap();
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
        socket.connect(&address).is_ok().then_some(socket)
    };
    let connections = std::iter::from_fn(connect).collect();
    (listener, connections)
}

#[test]
fn backlog_that_is_full_holds_nobody_beyond_its_bounds() {
    let pod = Pod::new();
    let (_listener, connections) = full_backlog(&pod.volume().join("sock"));
    assert!(!connections.is_empty());
    std::fs::create_dir(pod.volume().join("bin")).unwrap();
    std::fs::write(pod.volume().join("bin/waiter"), "").unwrap();
    let started = Instant::now();
    let mut ready = Command::new(env!("CARGO_BIN_EXE_waiter"))
        .args(["ready", "--dir"])
        .arg(pod.volume())
        .spawn()
        .unwrap();
    pod.plain_hook().ends_after(FALLBACK);
    pod.hook(&["--original-first"], &["true"])
        .ends_after(FALLBACK);
    eventually("ready to end", || ready.try_wait().unwrap());
    let seconds = started.elapsed().as_secs_f64();
    assert!((5.0..6.5).contains(&seconds), "{seconds}");
}

#[test]
fn killed_hook_is_noticed_and_the_next_is_served() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Silence,
        _ => Reply::Answer(go("no-attachment")),
    });
    let pod = Pod::with(&confirmer);
    let hook = pod.plain_hook();
    eventually("the question", || confirmer.holds().pop());
    signal(hook.pid(), "TERM");
    assert_eq!(hook.ended().code, None);
    pod.logged("Hold abandoned");
    pod.plain_hook().ends_after(ms(0));
}

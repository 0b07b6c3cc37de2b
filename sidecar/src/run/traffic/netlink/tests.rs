//! Datagrams as a kernel (6.18) sent them, and as none ever should.

use super::*;

/// A v6 wildcard listener on port 8080.
const LISTENER: &str = "a0010000140002 0*5 d6b4a1840a0a00001f90 0*38 07 0*15 80 0*7 e99e1a00050008 0*5 05000b 0*5 08000f 0*5 \
    0c00150001 0*7 06001600120000001c0102000a 0*27 80 0*51 0a 0*7 03 0*15 \
    ffffffffffffffffffffffffffffffff 0*160";
/// A connection to it by v4: 10.9.0.2:40000 sent a byte 1.5 s ago.
const MAPPED: &str = "98010000140002 0*5 73ad66b10a0100001f909c40 0*10 ffff0a090001 0*10 ffff0a090002 0*4 08 0*11 01 0*11 \
    eb9e1a00050008 0*5 08000f 0*5 0c00150001 0*7 06001600120000001c01020001 0*4 \
    07aa01e01c0300409c0000008000001802 0*22 e005 0*6 \
    e0050000e0050000ffff0000cbff00002100000010000000ffffff7f0a000000cbff000003 0*7 cbff 0*6 \
    7fbd6f9b06000000ffffffffffffffff 0*8 01 0*7 0100000003 0*7 2100000001 0*39 01 0*37 0100000001 0*45";
/// Word that its other end, a v4 socket, was closed.
const ENDED: &str = "7c01000014 0*11 020700009c401f900a090002 0*12 0a090001 0*16 09 0*27 05000a00060000001c01020007 0*4 \
    07aa00802c03 0*6 8000001802 0*22 0c06 0*6 0c06 0*6 \
    ffff0000d7ff00002114000000280000ffffff7f0c000000cbff000003 0*7 d7ff 0*6 \
    5a026cbc04000000ffffffffffffffff03 0*15 0400000003 0*7 0f 0*7 01000000fc360c 0*5 e0ab 0*22 03 0*7 01 \
    0*29 0100000001 0*45";
/// What is left of a connection that was closed from this side first, before its other end answered.
const FIN_WAIT2: &str = "60000000140002 0*5 70b6fed20a0503001f909c41 0*10 ffff0a090001 0*10 ffff0a090002 0*4 0b 0*7 fce9 0*18 \
    08000f 0*5";
/// The end of a dump.
const DONE: &str = "14000000030002 0*5 e81658fd 0*4";
/// An answer about a family that the kernel has no sockets of.
const REFUSED: &str = "5c00000002 0*7 41749380eaffffff4800000014000103 0*8 fa06020001 0*51";

/// Words of hex digits; `0*n` stands for n zero bytes.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        if let Some(zeros) = word.strip_prefix("0*") {
            bytes.resize(bytes.len() + zeros.parse::<usize>().unwrap(), 0);
            continue;
        }
        for place in (0..word.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&word[place..place + 2], 16).unwrap());
        }
    }
    bytes
}

fn all(datagram: &[u8]) -> (Result<bool, Error>, Vec<Socket>) {
    let mut sockets = VecDeque::new();
    let end = read(datagram, &mut sockets);
    (end, sockets.into())
}

fn socket(local: &str, remote: &str, cookie: u64, life: Life) -> Socket {
    Socket {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        cookie,
        life,
    }
}

fn heard(milliseconds: u64) -> Life {
    Life::Whole {
        last_byte: Some(Duration::from_millis(milliseconds)),
    }
}

#[test]
fn sockets_are_read_as_the_kernel_shows_them() {
    let client = "10.9.0.2:40000";
    for (hex, expected) in [
        (LISTENER, socket("[::]:8080", "[::]:0", 7, heard(0))),
        (MAPPED, socket("10.9.0.1:8080", client, 8, heard(1504))),
        (ENDED, socket(client, "10.9.0.1:8080", 9, heard(1548))),
        (
            FIN_WAIT2,
            socket("10.9.0.1:8080", "10.9.0.2:40001", 11, Life::TimeWait),
        ),
    ] {
        let (end, sockets) = all(&bytes(hex));
        assert!(!end.unwrap());
        assert_eq!(sockets, [expected]);
    }
}

#[test]
fn datagram_has_many_sockets_and_the_dumps_end() {
    let (end, sockets) = all(&bytes(&[MAPPED, FIN_WAIT2, LISTENER, DONE].join(" ")));
    assert!(end.unwrap());
    assert_eq!(sockets.len(), 3);
    assert!(all(&[]).1.is_empty());
}

#[test]
fn refusal_says_why() {
    let error = all(&bytes(REFUSED)).0.unwrap_err();
    let text = crate::log::chain(&error);
    assert!(
        text.contains("refused") && text.contains("(os error 22)"),
        "{text}"
    );
}

#[test]
fn bytes_of_no_form_are_an_error_or_nothing_and_never_a_panic() {
    let whole = bytes(MAPPED);
    for cut in 1..whole.len() {
        assert!(all(&whole[..cut]).0.is_err(), "{cut}");
        // The length agrees, the rest doesn't.
        let mut short = whole[..cut].to_vec();
        if cut >= 4 {
            short[..4].copy_from_slice(&u32::try_from(cut).unwrap().to_ne_bytes());
        }
        let _ = all(&short);
    }
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut wild = whole.clone();
        for _ in 0..random.usize(1..8) {
            let place = random.usize(..wild.len());
            wild[place] = random.u8(..);
        }
        let _ = all(&wild);
    }
}

#[test]
fn kernel_shows_a_connection_and_tells_of_its_end() {
    let closed = Closed::subscribe().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, remote) = listener.accept().unwrap();
    let local = server.local_addr().unwrap();
    let is_it = |socket: &Socket| (socket.local, socket.remote) == (local, remote);

    assert!(listening().unwrap().contains(&local.port()));
    let shown = connections().map(Result::unwrap).find(is_it).unwrap();
    assert!(matches!(shown.life, Life::Whole { last_byte: Some(_) }));
    drop((client, server));
    // Word comes a moment later; other tests' sockets end too.
    let told = std::iter::repeat_with(|| closed.take().unwrap())
        .take_while(|_| closed_soon())
        .flatten()
        .find(is_it)
        .unwrap();
    assert_eq!(told.cookie, shown.cookie);
}

/// Lets another thread run; false after a long time.
fn closed_soon() -> bool {
    static SPENT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    std::thread::yield_now();
    SPENT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 10_000_000
}

//! Dumps and ends of sockets, and what is reported of them.

use std::convert::Infallible;

use super::*;

const POD: &str = "10.0.0.5:8080";
const CLIENT: &str = "10.0.9.9:40000";

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn whole(local: &str, remote: &str, cookie: u64) -> Socket {
    Socket {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        cookie,
        life: Life::Whole { last_byte: None },
    }
}

fn time_wait(cookie: u64) -> Socket {
    Socket {
        life: Life::TimeWait,
        ..whole(POD, CLIENT, cookie)
    }
}

fn heard(local: &str, remote: &str, cookie: u64, last_byte: Duration) -> Socket {
    Socket {
        life: Life::Whole {
            last_byte: Some(last_byte),
        },
        ..whole(local, remote, cookie)
    }
}

fn dump(ledger: &mut Ledger, ports: &[u16], sockets: &[Socket], now: Duration) {
    let sockets = sockets.iter().copied().map(Ok::<_, Infallible>);
    ledger
        .dump(ports.iter().copied().collect(), sockets, now)
        .unwrap();
}

/// A ledger after a first dump with these connections, at 0 s.
fn began(sockets: &[Socket]) -> Ledger {
    let mut ledger = Ledger::new(at(0));
    dump(&mut ledger, &[8080], sockets, at(0));
    ledger
}

fn counted(ledger: &Ledger, port: u16) -> u32 {
    ledger
        .report(at(50))
        .new_connections
        .get(&port)
        .map_or(0, |counts| counts.iter().sum())
}

enum Step {
    Dump(Vec<Socket>),
    Closed(Socket),
}
use Step::{Closed, Dump};

#[test]
fn each_new_connection_counts_once_however_it_is_seen() {
    let open = |cookie| whole(POD, CLIENT, cookie);
    let other = || whole(POD, "10.0.9.9:40001", 7);
    for (number, (before, steps, expected)) in [
        // Before us.
        (vec![open(1)], vec![Dump(vec![open(1)]), Closed(open(1))], 0),
        (
            vec![open(1)],
            vec![Dump(vec![time_wait(2)]), Closed(open(1))],
            0,
        ),
        (vec![time_wait(2)], vec![Dump(vec![time_wait(2)])], 0),
        // Long, short, and several at once.
        (
            vec![],
            vec![Dump(vec![open(1)]), Dump(vec![open(1)]), Closed(open(1))],
            1,
        ),
        (vec![], vec![Closed(open(1))], 1),
        (
            vec![],
            vec![Dump(vec![open(1), other()]), Closed(open(1))],
            2,
        ),
        // Closed from our side, in every order in which that can be heard of.
        (
            vec![],
            vec![Dump(vec![time_wait(2)]), Dump(vec![time_wait(2)])],
            1,
        ),
        (vec![], vec![Dump(vec![time_wait(2)]), Closed(open(1))], 1),
        (vec![], vec![Closed(open(1)), Dump(vec![time_wait(2)])], 1),
        (
            vec![],
            vec![
                Dump(vec![open(1)]),
                Dump(vec![time_wait(2)]),
                Closed(open(1)),
            ],
            1,
        ),
        // The same 4-tuple again.
        (
            vec![],
            vec![Dump(vec![open(1)]), Dump(vec![open(3)]), Closed(open(3))],
            2,
        ),
        (vec![], vec![Closed(open(1)), Closed(open(3))], 2),
        (vec![open(1)], vec![Closed(open(1)), Closed(open(3))], 1),
        (vec![time_wait(2)], vec![Dump(vec![open(3)])], 1),
        (vec![time_wait(2)], vec![Closed(open(3))], 1),
        (
            vec![],
            vec![Dump(vec![time_wait(2)]), Dump(vec![time_wait(4)])],
            2,
        ),
        (
            vec![],
            vec![
                Closed(open(1)),
                Dump(vec![time_wait(2)]),
                Dump(vec![time_wait(4)]),
            ],
            2,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut ledger = began(&before);
        for (second, step) in (1..).zip(steps) {
            match step {
                Dump(sockets) => dump(&mut ledger, &[8080], &sockets, at(second)),
                Closed(socket) => ledger.closed(&socket, at(second)),
            }
        }
        assert_eq!(counted(&ledger, 8080), expected, "row {number}");
    }
}

#[test]
fn outbound_loopback_and_own_connections_do_not_count() {
    for (local, remote, expected) in [
        (POD, CLIENT, 1),
        ("[2001:db8::5]:8080", "[2001:db8::9]:1", 1),
        ("10.0.0.5:41000", "10.0.9.9:8080", 0),
        ("127.0.0.1:8080", "127.0.0.1:40000", 0),
        ("10.0.0.5:8080", "127.0.0.6:40000", 0),
        ("[::1]:8080", "[::1]:40000", 0),
        ("10.0.0.5:8080", "10.0.0.5:40000", 0),
        // A listener that ended, and a socket that never was connected.
        ("0.0.0.0:8080", "0.0.0.0:0", 0),
    ] {
        let socket = heard(local, remote, 1, at(1));
        let mut ledger = began(&[]);
        ledger.closed(&socket, at(1));
        assert_eq!(counted(&ledger, 8080), expected, "{local} {remote}");

        let mut ledger = began(&[]);
        dump(&mut ledger, &[8080], &[socket], at(1));
        assert_eq!(counted(&ledger, 8080), expected, "{local} {remote}");
        let reported = ledger.report(at(1)).last_byte_seconds.len();
        assert_eq!(reported, expected as usize, "{local} {remote}");
    }
}

#[test]
fn port_counts_while_it_is_listened_at_and_one_dump_longer() {
    let mut ledger = began(&[]);
    dump(&mut ledger, &[], &[whole(POD, CLIENT, 1)], at(1));
    ledger.closed(&whole(POD, "10.0.9.9:2", 2), at(1));
    assert_eq!(counted(&ledger, 8080), 2);
    dump(&mut ledger, &[9090], &[], at(2));
    ledger.closed(&whole(POD, "10.0.9.9:3", 3), at(2));
    assert_eq!(counted(&ledger, 8080), 2);
    ledger.closed(&whole("10.0.0.5:9090", CLIENT, 4), at(2));
    assert_eq!(counted(&ledger, 9090), 1);
}

#[test]
fn seconds_go_from_the_latest_back_and_end_with_the_first_connection() {
    let mut ledger = began(&[]);
    for (cookie, millis) in (1..).zip([990, 990, 3990, 5990]) {
        let remote = format!("10.0.9.9:{cookie}");
        ledger.closed(&whole(POD, &remote, cookie), Duration::from_millis(millis));
    }
    for (millis, expected) in [
        (6000, vec![1, 0, 1, 0, 0, 2]),
        (6900, vec![1, 0, 1, 0, 0, 2]),
        (7000, vec![0, 1, 0, 1, 0, 0, 2]),
    ] {
        let now = Duration::from_millis(millis);
        let report = ledger.report(now);
        assert_eq!(report.new_connections, BTreeMap::from([(8080, expected)]));
        assert_eq!(Duration::from_secs_f64(report.watched_seconds), now);
    }
    // The two first ones are out of the window, then all are.
    let counts = &ledger.report(at(62)).new_connections[&8080];
    assert_eq!((counts.len(), counts.iter().sum()), (59, 2));
    assert!(ledger.report(at(67)).new_connections.is_empty());
}

#[test]
fn connection_is_never_reported_older_than_it_is() {
    for millis in (0..3000).step_by(70) {
        let mut ledger = began(&[]);
        ledger.closed(&whole(POD, CLIENT, 1), Duration::from_millis(millis));
        for age in (0..4000).step_by(90) {
            let report = ledger.report(Duration::from_millis(millis + age));
            let seconds = report.new_connections[&8080].len() as u64 - 1;
            assert!(seconds * 1000 <= age, "{millis} {age} {seconds}");
            assert!(age < (seconds + 1) * 1000 + 250, "{millis} {age} {seconds}");
        }
    }
}

#[test]
fn counter_tells_what_nobody_saw_one_reading_later_and_when_it_was() {
    let mut ledger = began(&[]);
    ledger.passive_opens(100, at(0));
    // One is seen, one from loopback is seen, three aren't.
    ledger.closed(&whole(POD, CLIENT, 1), at(9));
    ledger.closed(&whole("127.0.0.1:8080", "127.0.0.1:2", 2), at(9));
    ledger.passive_opens(105, at(10));
    assert_eq!(counted(&ledger, UNKNOWN_PORT), 0, "word of them may come");
    // One of the three is heard of late.
    ledger.closed(&whole(POD, "10.0.9.9:3", 3), at(11));
    ledger.passive_opens(105, at(20));
    assert_eq!(
        ledger.report(at(20)).new_connections[&UNKNOWN_PORT].len(),
        10
    );
    assert_eq!(counted(&ledger, UNKNOWN_PORT), 2);
    ledger.passive_opens(106, at(21));
    ledger.passive_opens(106, at(22));
    assert_eq!(
        counted(&ledger, UNKNOWN_PORT),
        3,
        "what was missed counts once"
    );
    let counts = &ledger.report(at(23)).new_connections[&UNKNOWN_PORT];
    assert_eq!((counts[1], counts.len()), (1, 13));
    assert_eq!(counted(&ledger, 8080), 2);
}

#[test]
fn counter_that_falls_or_lags_behind_means_nothing() {
    let mut ledger = began(&[]);
    for (second, count) in [(0, 100), (1, 50), (2, 50), (3, 100)] {
        ledger.closed(&whole(POD, CLIENT, 1), at(second));
        ledger.passive_opens(count, at(second));
    }
    assert_eq!(counted(&ledger, UNKNOWN_PORT), 0);
}

#[test]
fn last_byte_is_the_youngest_of_the_ports_open_connections_and_ages() {
    let sockets = [
        heard(POD, CLIENT, 1, at(30)),
        heard(POD, "10.0.9.9:2", 2, at(3)),
        heard(POD, "10.0.9.9:3", 3, at(9)),
        heard("127.0.0.1:8080", "127.0.0.1:4", 4, at(0)),
        Socket {
            remote: "10.0.9.9:5".parse().unwrap(),
            ..time_wait(5)
        },
        heard("10.0.0.5:9090", CLIENT, 6, at(70)),
        heard("10.0.0.5:41000", "10.0.9.9:443", 7, at(0)),
    ];
    let mut ledger = Ledger::new(at(100));
    dump(&mut ledger, &[8080, 9090], &sockets, at(100));
    let ages = BTreeMap::from([(8080, 5.5), (9090, 72.5)]);
    let report = ledger.report(Duration::from_millis(102_500));
    assert_eq!(report.last_byte_seconds, ages);
    dump(&mut ledger, &[8080, 9090], &sockets[..1], at(103));
    let ages = BTreeMap::from([(8080, 30.0)]);
    assert_eq!(
        ledger.report(at(103)).last_byte_seconds,
        ages,
        "the others are closed"
    );
}

#[test]
fn dump_that_fails_forgets_nothing() {
    let mut ledger = began(&[heard(POD, CLIENT, 1, at(1)), time_wait(2)]);
    for second in 1..10 {
        let new = whole(POD, "10.0.9.9:2", 3);
        let failed = ledger.dump(BTreeSet::from([8080]), [Ok(new), Err("no")], at(second));
        assert_eq!(failed, Err("no"));
    }
    dump(&mut ledger, &[8080], &[whole(POD, CLIENT, 1)], at(10));
    assert_eq!(counted(&ledger, 8080), 1);
    let report = ledger.report(at(10));
    assert!(
        report.last_byte_seconds.is_empty(),
        "the kernel told no age"
    );
}

#[test]
fn socket_that_an_app_keeps_after_its_connections_end_is_not_new_later() {
    let mut ledger = began(&[whole(POD, CLIENT, 1)]);
    for second in 1..100 {
        dump(&mut ledger, &[8080], &[], at(second));
    }
    ledger.closed(&whole(POD, CLIENT, 1), at(100));
    assert!(ledger.report(at(100)).new_connections.is_empty());
}

#[test]
fn what_ended_is_forgotten_some_dumps_later() {
    let mut ledger = began(&[time_wait(1)]);
    let known = |ledger: &Ledger| ledger.known.as_ref().map(HashMap::len);
    ledger.closed(&whole(POD, "10.0.9.9:1", 2), at(1));
    dump(&mut ledger, &[8080], &[], at(1));
    dump(&mut ledger, &[8080], &[], at(2));
    assert_eq!(known(&ledger), Some(2));
    dump(&mut ledger, &[8080], &[], at(3));
    dump(&mut ledger, &[8080], &[], at(4));
    assert_eq!(known(&ledger), Some(0));
}

#[test]
fn of_too_many_connections_only_the_number_is_told() {
    let many: Vec<_> = (0..30_000_u64)
        .map(|n| heard(POD, &format!("10.0.9.{}:{}", n % 200, 1 + n), n + 1, at(n)))
        .collect();
    let mut ledger = began(&many[..KNOWN]);
    ledger.passive_opens(0, at(0));
    dump(&mut ledger, &[8080], &many[..KNOWN], at(1));
    assert!(ledger.known.is_some());
    dump(&mut ledger, &[8080], &many, at(2));
    ledger.passive_opens(1328, at(2));
    dump(&mut ledger, &[8080], &many[..5], at(3));
    ledger.passive_opens(1328, at(3));
    assert_eq!(
        (counted(&ledger, 8080), counted(&ledger, UNKNOWN_PORT)),
        (0, 1328)
    );
    assert_eq!(
        ledger.report(at(3)).last_byte_seconds,
        BTreeMap::from([(8080, 0.0)])
    );
    assert!(ledger.known.is_none(), "nothing is kept of them");
}

#[test]
fn ports_beyond_the_cap_count_together() {
    let ports: Vec<u16> = (1..=100).collect();
    let sockets: Vec<_> = ports
        .iter()
        .map(|port| heard(&format!("10.0.0.5:{port}"), CLIENT, u64::from(*port), at(1)))
        .collect();
    let mut ledger = Ledger::new(at(0));
    dump(&mut ledger, &ports, &[], at(0));
    dump(&mut ledger, &ports, &sockets, at(1));
    let report = ledger.report(at(1));
    assert_eq!(counted(&ledger, UNKNOWN_PORT), 36);
    assert_eq!(
        (report.new_connections.len(), report.last_byte_seconds.len()),
        (PORTS + 1, PORTS)
    );
}

#[test]
fn namespace_without_listeners_reports_nothing() {
    let mut ledger = Ledger::new(at(0));
    for second in 0..3 {
        let socket = heard(POD, &format!("10.0.9.9:{}", second + 1), second + 1, at(0));
        dump(&mut ledger, &[], &[socket], at(second));
        ledger.passive_opens(5, at(second));
        ledger.closed(&socket, at(second));
    }
    let empty = Traffic {
        watched_seconds: 3.0,
        ..Traffic::default()
    };
    assert_eq!(ledger.report(at(3)), empty);
}

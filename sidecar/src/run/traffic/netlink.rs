//! What the kernel tells of TCP sockets: dumps of those that are there, and word of those that end.
//!
//! `NETLINK_SOCK_DIAG` shows the caller's own network namespace, and needs no capability. An answer can't come from
//! anybody but the kernel: to send to another's socket of this protocol needs `CAP_NET_ADMIN`.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, DoneBuffer, Emitable as _, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkBuffer, NetlinkHeader, NlasIterator, Parseable as _,
};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags, Timer,
};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, INET_DIAG_INFO, IPPROTO_TCP, SOCK_DIAG_BY_FAMILY,
};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::ledger::{Life, Socket};

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of a question: `struct inet_diag_req_v2` behind a header.
const QUESTION: u8 = 16 + 56;
/// Length of `struct inet_diag_msg`; attributes follow.
const MESSAGE: usize = 72;
/// Where `struct tcp_info` has `tcpi_last_data_recv`, milliseconds, in every kernel: its older fields never move.
const LAST_DATA_RECV: std::ops::Range<usize> = 52..56;
/// The kernel fills as much as it is offered, up to this (`netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;
/// Most datagrams that one dump may take, of about 80 sockets each.
const DATAGRAMS: usize = 4096;
/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` as a mask: groups 1 and 3.
const DESTROYED: u32 = 1 << 0 | 1 << 2;
/// Place for sockets that ended while nobody read; the kernel gives less where its own limit is lower (by default
/// 416 kB, about 300 sockets).
const QUEUE: usize = 1024 * 1024;
/// Most datagrams read in one go, each with one socket: the kernel may be faster than we are.
const BATCH: usize = 4096;

/// Why sockets can't be looked at.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No such protocol, no memory, or a seccomp profile is against it.
    #[error("failed to open a sock_diag socket")]
    Open(#[source] Errno),
    /// The question wasn't taken.
    #[error("failed to ask sock_diag for TCP sockets")]
    Ask(#[source] Errno),
    /// The answer couldn't be read.
    #[error("failed to read from sock_diag")]
    Read(#[source] Errno),
    /// The kernel answered with an error.
    #[error("sock_diag refused to show TCP sockets")]
    Refused(#[source] Errno),
    /// The answer isn't of the form that we know.
    #[error("failed to understand sock_diag")]
    Parse(#[source] DecodeError),
    /// The answer is cut off.
    #[error("sock_diag's answer is longer than {BUFFER} bytes")]
    TooLong,
    /// The namespace has more sockets than we read.
    #[error("sock_diag's answer takes more than {DATAGRAMS} datagrams")]
    TooMany,
}

/// Ports that are listened at now, by v4 or v6.
pub(super) fn listening() -> Result<BTreeSet<u16>, Error> {
    dump(&StateFlags::LISTEN)
        .map(|socket| Ok(socket?.local.port()))
        .collect()
}

/// All connections that are there now or in `TIME_WAIT`, inbound and outbound. Not the half-open ones.
pub(super) fn connections() -> impl Iterator<Item = Result<Socket, Error>> {
    dump(
        &(StateFlags::ESTABLISHED
            | StateFlags::FIN_WAIT1
            | StateFlags::FIN_WAIT2
            | StateFlags::TIME_WAIT
            | StateFlags::CLOSE_WAIT
            | StateFlags::LAST_ACK
            | StateFlags::CLOSING),
    )
}

fn dump(states: &StateFlags) -> impl Iterator<Item = Result<Socket, Error>> + use<> {
    let [v4, v6] = [
        (AF_INET, SocketId::new_v4()),
        (AF_INET6, SocketId::new_v6()),
    ]
    .map(|(family, socket_id)| Dump {
        request: Some(InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::INFO,
            states: states.clone(),
            socket_id,
        }),
        socket: None,
        datagrams: 0,
        read: VecDeque::new(),
    });
    v4.chain(v6)
}

/// A dump under way: the kernel walks its tables as we read, so that no answer is ever kept as a whole.
struct Dump {
    /// What isn't asked yet.
    request: Option<InetRequest>,
    /// `None` once all is read.
    socket: Option<OwnedFd>,
    datagrams: usize,
    read: VecDeque<Socket>,
}

impl Dump {
    fn ask(&mut self, request: &InetRequest) -> Result<(), Error> {
        let socket = open()?;
        let mut bytes = [0; QUESTION as usize];
        let mut header = NetlinkHeader::default();
        header.length = QUESTION.into();
        header.message_type = SOCK_DIAG_BY_FAMILY;
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.emit(&mut bytes[..HEADER]);
        request.emit(&mut bytes[HEADER..]);
        rustix::net::send(&socket, &bytes, SendFlags::DONTWAIT).map_err(Error::Ask)?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Reads one datagram, if there is more to come.
    fn fill(&mut self) -> Result<(), Error> {
        if let Some(request) = self.request.take() {
            self.ask(&request)?;
        }
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        self.datagrams += 1;
        if self.datagrams > DATAGRAMS {
            return Err(Error::TooMany);
        }
        let mut buffer = vec![0; BUFFER];
        let length = receive(socket, &mut buffer).map_err(Error::Read)?;
        if read(buffer.get(..length).ok_or(Error::TooLong)?, &mut self.read)? {
            self.socket = None;
        }
        Ok(())
    }
}

impl Iterator for Dump {
    type Item = Result<Socket, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.read.is_empty() && (self.request.is_some() || self.socket.is_some()) {
            if let Err(error) = self.fill() {
                self.socket = None;
                return Some(Err(error));
            }
        }
        self.read.pop_front().map(Ok)
    }
}

/// Hears of TCP sockets that end, from now on.
#[derive(Debug)]
pub(super) struct Closed {
    socket: OwnedFd,
}

impl Closed {
    pub(super) fn subscribe() -> Result<Self, Error> {
        let socket = open()?;
        sockopt::set_socket_recv_buffer_size(&socket, QUEUE).map_err(Error::Open)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, DESTROYED)).map_err(Error::Open)?;
        Ok(Self { socket })
    }

    /// Sockets that ended since this was last asked. Where there were too many for the kernel's queue, the first ones.
    pub(super) fn take(&self) -> Result<VecDeque<Socket>, Error> {
        let mut sockets = VecDeque::new();
        let mut buffer = [0; 4096];
        for _ in 0..BATCH {
            match receive(&self.socket, &mut buffer) {
                // A longer one has news that isn't for us.
                Ok(length) => {
                    read(&buffer[..length.min(buffer.len())], &mut sockets)?;
                }
                Err(Errno::AGAIN) => break,
                // Said once when the queue was full; `PassiveOpens` tells how much was lost.
                Err(Errno::NOBUFS) => {}
                Err(error) => return Err(Error::Read(error)),
            }
        }
        Ok(sockets)
    }
}

fn open() -> Result<OwnedFd, Error> {
    rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )
    .map_err(Error::Open)
}

/// The datagram's whole length, which may be more than the buffer's.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::TRUNC))
        .map(|(_, length)| length)
}

/// Takes a datagram's sockets; true at the dump's end.
fn read(mut datagram: &[u8], sockets: &mut VecDeque<Socket>) -> Result<bool, Error> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(Error::Parse)?;
        match message.message_type() {
            NLMSG_DONE | NLMSG_ERROR => return succeeded(message.payload()).map(|()| true),
            SOCK_DIAG_BY_FAMILY => sockets.push_back(parse(message.payload())?),
            _ => {}
        }
        let next = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
    }
    Ok(false)
}

/// Both ends of an answer begin with an error number, negative, or 0.
fn succeeded(payload: &[u8]) -> Result<(), Error> {
    let code = DoneBuffer::new_checked(payload)
        .map_err(Error::Parse)?
        .code();
    if code < 0 {
        return Err(Error::Refused(Errno::from_raw_os_error(
            code.saturating_neg(),
        )));
    }
    Ok(())
}

fn parse(payload: &[u8]) -> Result<Socket, Error> {
    let header = InetResponseHeader::parse(payload).map_err(Error::Parse)?;
    let id = header.socket_id;
    // What is left of a connection in TIME_WAIT is another object, which the kernel also shows as FIN_WAIT2.
    let life = if header.timer == Some(Timer::TimeWait) {
        Life::TimeWait
    } else {
        Life::Whole {
            last_byte: last_byte(payload.get(MESSAGE..).unwrap_or_default()),
        }
    };
    Ok(Socket {
        local: SocketAddr::new(id.source_address.to_canonical(), id.source_port),
        remote: SocketAddr::new(id.destination_address.to_canonical(), id.destination_port),
        cookie: u64::from_ne_bytes(id.cookie),
        life,
    })
}

/// Age of the last byte that came in; of one that never got any, of the connection.
fn last_byte(attributes: &[u8]) -> Option<Duration> {
    let info = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind() == INET_DIAG_INFO)?;
    let bytes = info.value().get(LAST_DATA_RECV)?.try_into().ok()?;
    Some(Duration::from_millis(u64::from(u32::from_ne_bytes(bytes))))
}

#[cfg(test)]
mod tests;

//! Looking at what waits without taking it: MSG_PEEK, and where each look begins (SO_PEEK_OFF,
//! socket(7)); what a sender has on the way (SIOCOUTQ, unix(7)).

use crate::sys::*;
use crate::{sc, tests};

tests! { "peeks":
    looks_go_on_in_a_stream, looks_go_on_in_messages, looks_of_udp_and_tcp,
    looks_see_several_pieces, who_keeps_no_count, datagrams_on_the_way,
    an_urgent_byte_that_is_not_there,
}

fn pair(kind: i32) -> [i32; 2] {
    let mut fds = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind, 0, fds.as_mut_ptr()).is(0);
    fds
}

fn look_from(fd: i32, offset: i32) -> Res {
    sc!(SYS_setsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &raw const offset, 4)
}

fn looks_from(fd: i32) -> i32 {
    let (mut offset, mut len) = (77i32, 4u32);
    sc!(SYS_getsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &raw mut offset, &raw mut len).is(0);
    offset
}

fn receive(fd: i32, most: usize, flags: i32) -> Result<Vec<u8>, i32> {
    let mut text = [0u8; 64];
    let got = sc!(SYS_recvfrom, fd, text.as_mut_ptr(), most, flags | MSG_DONTWAIT, 0, 0)?;
    Ok(text[..got.min(most)].to_vec())
}

fn peek(fd: i32, most: usize) -> Result<Vec<u8>, i32> {
    receive(fd, most, MSG_PEEK)
}

/// Each look begins where the last one ended; what is taken moves the place back.
fn looks_go_on_in_a_stream() {
    let [a, b] = pair(SOCK_STREAM);
    assert_eq!(looks_from(b), -1);
    write(a, b"0123456789");
    assert_eq!(peek(b, 3).expect("text"), b"012");
    assert_eq!(peek(b, 3).expect("text"), b"012");
    look_from(b, 4).is(0);
    assert_eq!(peek(b, 3).expect("text"), b"456");
    assert_eq!(looks_from(b), 7);
    assert_eq!(peek(b, 9).expect("text"), b"789");
    assert_eq!(peek(b, 9), Err(EAGAIN));
    assert_eq!(receive(b, 2, 0).expect("text"), b"01");
    assert_eq!(looks_from(b), 8);
    assert_eq!(read(b, 5), b"23456");
    assert_eq!(looks_from(b), 3);
    write(a, b"abc");
    assert_eq!(peek(b, 9).expect("text"), b"abc");
    assert_eq!(receive(b, 9, 0).expect("text"), b"789abc");
    assert_eq!(looks_from(b), 0);
    look_from(b, -1).is(0);
    write(a, b"x");
    assert_eq!((peek(b, 9), peek(b, 9)), (Ok(b"x".to_vec()), Ok(b"x".to_vec())));
    // At the end there is nothing more to look at.
    look_from(b, 1).is(0);
    close(a);
    assert_eq!(peek(b, 9).expect("the end"), b"");
}

/// Of messages one is looked at, from the place on; then the next.
fn looks_go_on_in_messages() {
    for kind in [SOCK_DGRAM, SOCK_SEQPACKET] {
        let [a, b] = pair(kind);
        for text in [&b"first"[..], b"second", b"third"] {
            write(a, text);
        }
        look_from(b, 0).is(0);
        assert_eq!(peek(b, 2).expect("text"), b"fi");
        assert_eq!(peek(b, 9).expect("text"), b"rst");
        assert_eq!(peek(b, 9).expect("text"), b"second");
        assert_eq!(looks_from(b), 11);
        assert_eq!(receive(b, 2, 0).expect("text"), b"fi");
        assert_eq!(looks_from(b), 6);
        assert_eq!(peek(b, 9).expect("text"), b"third");
        assert_eq!(peek(b, 9), Err(EAGAIN));
        look_from(b, 1).is(0);
        let mut text = [0u8; 2];
        let flags = MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT;
        sc!(SYS_recvfrom, b, text.as_mut_ptr(), 2, flags, 0, 0).is(5);
        assert_eq!(&text, b"ec");
    }
}

fn looks_of_udp_and_tcp() {
    let mut name = [0u8; 16];
    name[0] = AF_INET as u8;
    name[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let mut len = 16u32;
    let inbox = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    sc!(SYS_bind, inbox, name.as_ptr(), 16).is(0);
    sc!(SYS_getsockname, inbox, name.as_mut_ptr(), &raw mut len).is(0);
    let out = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    for text in [&b"abcde"[..], b"", b"fgh"] {
        sc!(SYS_sendto, out, text.as_ptr(), text.len(), 0, name.as_ptr(), 16).is(text.len());
    }
    look_from(inbox, 2).is(0);
    assert_eq!(peek(inbox, 2).expect("text"), b"cd");
    assert_eq!(peek(inbox, 9).expect("text"), b"e");
    assert_eq!(receive(inbox, 9, 0).expect("text"), b"abcde");
    assert_eq!(looks_from(inbox), 0);
    assert_eq!(peek(inbox, 9).expect("nothing"), b"");
    assert_eq!(peek(inbox, 9).expect("text"), b"fgh");
    name[2..4].fill(0);
    let listener = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_bind, listener, name.as_ptr(), 16).is(0);
    sc!(SYS_listen, listener, 1).is(0);
    sc!(SYS_getsockname, listener, name.as_mut_ptr(), &raw mut len).is(0);
    let client = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_connect, client, name.as_ptr(), 16).is(0);
    assert_eq!(looks_from(client), -1);
}

/// Pieces of one sender are looked at together, as they would be received.
fn looks_see_several_pieces() {
    let [a, b] = pair(SOCK_STREAM);
    let on = 1i32;
    sc!(SYS_setsockopt, b, SOL_SOCKET, SO_PASSCRED, &raw const on, 4).is(0);
    write(a, b"one");
    write(a, b"two");
    assert_eq!(peek(b, 9).expect("text"), b"onetwo");
    look_from(b, 2).is(0);
    assert_eq!(peek(b, 3).expect("text"), b"etw");
    assert_eq!(peek(b, 9).expect("text"), b"o");
    assert_eq!(receive(b, 9, 0).expect("text"), b"onetwo");
}

fn who_keeps_no_count() {
    let netlink = sc!(SYS_socket, AF_NETLINK, SOCK_RAW, 0).fd();
    look_from(netlink, 0).fails(EOPNOTSUPP);
    let [a, _] = pair(SOCK_STREAM);
    look_from(a, -7).is(0);
    assert_eq!(looks_from(a), -7);
}

/// SIOCOUTQ of datagrams: more than nothing as long as nobody has received them.
fn datagrams_on_the_way() {
    let [a, b] = pair(SOCK_DGRAM);
    let on_the_way = |fd: i32| {
        let mut bytes = -1i32;
        sc!(SYS_ioctl, fd, TIOCOUTQ, &raw mut bytes).is(0);
        bytes
    };
    assert_eq!(on_the_way(a), 0);
    write(a, b"0123456789");
    write(a, b"0123456789");
    let two = on_the_way(a);
    assert!(two >= 20 && on_the_way(b) == 0, "{two}");
    assert_eq!(peek(b, 20).expect("text"), b"0123456789");
    assert_eq!(on_the_way(a), two);
    assert_eq!(read(b, 5), b"01234");
    let one = on_the_way(a);
    assert!((10..two).contains(&one), "{one}");
    close(b);
    assert_eq!(on_the_way(a), 0);
}

/// MSG_OOB of a unix socket: what comes before the urgent byte goes out by itself.
fn an_urgent_byte_that_is_not_there() {
    let [a, b] = pair(SOCK_STREAM);
    let part = |at: usize, len: usize| iovec { iov_base: at as *mut c_void, iov_len: len };
    let parts = [part(b"before".as_ptr() as usize, 6), part(8, 1)];
    // SAFETY: a structure of pointers and numbers.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (parts.as_ptr().cast_mut(), 2);
    sc!(SYS_sendmsg, a, &raw const header, MSG_OOB).is(6);
    assert_eq!(receive(b, 9, 0).expect("text"), b"before");
    assert_eq!(receive(b, 9, MSG_OOB), Err(EINVAL));
}

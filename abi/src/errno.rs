//! Error numbers, as system calls return them (errno(3)).

/// A Linux error number. What a program sees is its negative. As wide as a result, so that a
/// `Result<u64, Errno>` is returned in two registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(u64);

impl Errno {
    /// The error with this number.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Errno {
        Errno(number as u64)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0 as i32
    }

    /// What the system call leaves in RAX.
    #[inline]
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0.wrapping_neg()
    }

    /// The name, such as `"ENOENT"`; `"E?"` for a number that Linux does not use.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(number, _)| *number == self.number()).map_or("E?", |(_, name)| name)
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

macro_rules! numbers {
    ($($name:ident)*) => {
        #[expect(missing_docs, reason = "errno(3) describes each")]
        impl Errno {
            $(pub const $name: Errno = Errno::new(linux_raw_sys::errno::$name);)*
        }
        const NAMES: &[(i32, &str)] =
            &[$((linux_raw_sys::errno::$name as i32, stringify!($name))),*];
    };
}

numbers! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP EWOULDBLOCK ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT
    EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EDEADLOCK EBFONT ENOSTR ENODATA ETIME ENOSR ENONET
    ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ
    EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS
    ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT
    EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
    ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL
    EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED
    EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
}

/// Inside the kernel only: how an interrupted call goes on once the signal has been handled. No
/// program ever sees these numbers.
impl Errno {
    /// Restart if the handler was installed with SA_RESTART or there is none; else EINTR.
    pub const ERESTARTSYS: Errno = Errno::new(512);
    /// Restart always.
    pub const ERESTARTNOINTR: Errno = Errno::new(513);
    /// Restart if there is no handler; else EINTR.
    pub const ERESTARTNOHAND: Errno = Errno::new(514);
    /// Go on by restart_syscall(2) with a changed timeout if there is no handler; else EINTR.
    pub const ERESTART_RESTARTBLOCK: Errno = Errno::new(516);
}

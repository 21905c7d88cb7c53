//! What a plain user may not do.

use std::time::Duration;

use harness::{Child, Need, Outcome, Role, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::{Device, Endpoint, ErrorKind, LocalRegion, Peer, Usage};
use rustix::process::{Resource, Rlimit, setrlimit};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "a_plain_users_limits_are_named_with_what_to_do",
        &[Need::Device, Need::Root],
        || {
            Child::role("plain_user", "", &[])?
                .finish(WAIT)?
                .success()?;
            Ok(())
        },
    )]
}

pub(crate) const ROLES: &[Role] = &[("plain_user", plain_user)];

/// Gives up the rights of root, for this process alone, and lowers its limit of pinned memory.
fn plain_user() -> Outcome {
    const LIMIT: u64 = 64 << 10;
    const NOBODY: u32 = 65534;
    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: Some(LIMIT),
            maximum: Some(LIMIT),
        },
    )?;
    // SAFETY: changes this process only, which has one thread.
    let group = unsafe { libc::setgid(NOBODY) };
    // SAFETY: as above.
    let user = unsafe { libc::setuid(NOBODY) };
    ensure!(
        group == 0 && user == 0,
        "cannot become nobody: {}",
        std::io::Error::last_os_error()
    );

    let peer = Peer::new(&Device::local(device().ip)?)?;
    let error = LocalRegion::alloc(&peer, 1 << 20, Usage::all())
        .err()
        .ok_or("1 MiB was pinned")?;
    ensure_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    ensure_eq!(error.code(), -100_003, "{error}");
    let hint = error.hint().unwrap_or_default();
    ensure!(
        hint.contains("64 KiB") && hint.contains("ulimit -l"),
        "{hint}"
    );
    // Within the limit it works.
    LocalRegion::alloc(&peer, 16 << 10, Usage::all())?;

    let error = Endpoint::listen(&peer, device().addr(1))
        .err()
        .ok_or("listening at port 1")?;
    ensure_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    ensure!(
        error.to_string().contains(&device().addr(1).to_string()),
        "{error}"
    );
    let endpoint = Endpoint::listen(&peer, device().addr(0))?;
    let moment = Duration::from_millis(1);
    let error = endpoint
        .next_connection_request(&rpma::ConnectionConfig::default(), moment)
        .err();
    ensure!(
        error.is_some_and(|error| error.kind() == ErrorKind::TimedOut),
        "no timeout"
    );
    Ok(())
}

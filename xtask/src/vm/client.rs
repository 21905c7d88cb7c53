//! The host's end of a command in the VM: its input, output and exit code pass through as if it ran here.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use super::protocol::{self, Kind, Request};
use super::state::Running;
use crate::error::{Context, Error, Result};

/// The exit code that says "the VM, not the command".
pub(crate) const LOST: u8 = 125;

/// Runs `command` in the VM with this process's folder, environment and standard streams.
///
/// # Errors
/// With exit code 125 when the VM cannot be reached, refuses, or ends before the command does.
pub(crate) fn exec(vm: &Running, command: &[OsString]) -> Result<ExitCode> {
    let request = Request {
        token: vm.token.clone(),
        folder: env::current_dir()
            .context(|| "the current folder is gone".to_owned())?
            .into_os_string(),
        environment: env::vars_os().collect(),
        command: command.to_vec(),
    };
    let mut stream = connect(vm.port)?;
    let mut writer = stream
        .try_clone()
        .context(|| "cannot copy the VM's socket".to_owned())?;
    protocol::write_frame(&mut writer, Kind::Request, &request.encode())
        .map_err(|error| lost(format!("cannot send the command to the VM: {error}")))?;
    thread::spawn(move || forward_stdin(&mut writer));
    loop {
        let (kind, payload) = protocol::read_frame(&mut stream).map_err(|error| {
            let how = match error.kind() {
                io::ErrorKind::UnexpectedEof => "its connection ended".to_owned(),
                _ => error.to_string(),
            };
            lost(format!(
                "lost the VM while '{}' ran: {how}; `cargo xtask vm console` shows its last words",
                command[0].to_string_lossy()
            ))
        })?;
        match kind {
            Kind::Stdout => pass_on(&mut io::stdout(), &payload)?,
            Kind::Stderr => pass_on(&mut io::stderr(), &payload)?,
            Kind::Exit => {
                let code = protocol::exit_code(&payload)
                    .map_err(|error| lost(format!("the VM's agent sent nonsense: {error}")))?;
                return Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)));
            }
            Kind::Refused => {
                return Err(lost(format!(
                    "the VM's agent refused: {}",
                    String::from_utf8_lossy(&payload)
                )));
            }
            Kind::Request | Kind::Stdin => {
                return Err(lost(format!(
                    "the VM's agent sent a frame of the wrong direction: {kind:?}"
                )));
            }
        }
    }
}

/// Runs a command without input or environment and returns whether it exited with 0 in time.
pub(crate) fn answers(port: u16, token: &str, deadline: Duration) -> bool {
    let request = Request {
        token: token.to_owned(),
        folder: "/".into(),
        environment: Vec::new(),
        command: vec!["/bin/true".into()],
    };
    let ask = || -> io::Result<bool> {
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), deadline)?;
        stream.set_read_timeout(Some(deadline))?;
        protocol::write_frame(&mut stream, Kind::Request, &request.encode())?;
        loop {
            let (kind, payload) = protocol::read_frame(&mut stream)?;
            if kind == Kind::Exit {
                return Ok(protocol::exit_code(&payload)? == 0);
            }
        }
    };
    ask().unwrap_or(false)
}

fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream =
        TcpStream::connect_timeout(&address, Duration::from_secs(10)).map_err(|error| {
            lost(format!(
                "cannot reach the VM at {address}: {error}; `cargo xtask vm status` tells more"
            ))
        })?;
    stream
        .set_nodelay(true)
        .context(|| "cannot set up the VM's socket".to_owned())?;
    Ok(stream)
}

fn forward_stdin(to: &mut TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    let mut stdin = io::stdin().lock();
    loop {
        let read = match stdin.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // An unreadable input is an ended one to the command.
            Err(_) => 0,
            Ok(read) => read,
        };
        // Fails when the command is over: nobody waits for this thread.
        if protocol::write_frame(to, Kind::Stdin, &buffer[..read]).is_err() {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if read == 0 {
            return;
        }
    }
}

fn pass_on(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    match to.write_all(bytes).and_then(|()| to.flush()) {
        // As a program of one's own, that the reader's end would have stopped with SIGPIPE.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(141),
        other => other.context(|| "cannot pass on the command's output".to_owned()),
    }
}

fn lost(message: String) -> Error {
    Error::new(message).with_exit_code(LOST)
}

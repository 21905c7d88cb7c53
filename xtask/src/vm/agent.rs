//! The guest's end: as process 1 it collects orphans, as its child it sets the device up and runs commands for clients.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process_group};
use rustix::system::RebootCommand;

use super::guest;
use super::protocol::{self, Kind, Request};
use crate::error::{Context, Error, Result};

/// How long output may still come after the command's own end, from processes that it left behind.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Runs the agent; `port` is where it listens.
///
/// # Errors
/// When this is no VM of ours, or the socket cannot be opened. Process 1 never returns.
pub(crate) fn main(port: u16) -> Result<()> {
    if !guest::is_guest() {
        return Err(Error::new(
            "vm-agent is the part that runs inside the VM; use `cargo xtask vm start` to start one",
        ));
    }
    if std::process::id() == 1 {
        be_process_one(port)
    } else {
        serve(port)
    }
}

/// Starts the serving agent, collects every process that ends, and powers off when the agent does.
fn be_process_one(port: u16) -> ! {
    let child = env::current_exe().and_then(|own| {
        Command::new(own)
            .args(["vm-agent", &port.to_string()])
            .env("PATH", guest::PATH)
            .stdin(Stdio::null())
            .spawn()
    });
    match child {
        Ok(child) => loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, _)))
                    if u32::try_from(pid.as_raw_nonzero().get()) == Ok(child.id()) =>
                {
                    break;
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        },
        Err(error) => println!("@@ failed: the agent cannot start: {error}"),
    }
    power_off()
}

fn power_off() -> ! {
    println!("@@ power off");
    // The console is slow and asynchronous: let the last line through.
    thread::sleep(Duration::from_millis(200));
    loop {
        // QEMU runs with -no-reboot: a restart ends it, on machines without ACPI as well.
        let _ = rustix::system::reboot(RebootCommand::Restart);
        thread::sleep(Duration::from_secs(1));
    }
}

fn serve(port: u16) -> Result<()> {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    rustix::process::setrlimit(Resource::Memlock, unlimited)
        .context(|| "cannot lift the memlock limit".to_owned())?;
    let token = match guest::set_up() {
        Ok(token) => token,
        Err(error) => {
            println!("@@ failed: {error}");
            return Err(error);
        }
    };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .context(|| format!("the agent cannot listen on port {port}"))?;
    let activity = Arc::new(Activity::default());
    let for_watch = Arc::clone(&activity);
    thread::spawn(move || for_watch.end_process_when_idle(guest::idle_limit()));
    println!("@@ agent ready");
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let (token, activity) = (token.clone(), Arc::clone(&activity));
        thread::spawn(move || {
            let _counted = activity.begin();
            if let Err(error) = run(stream, &token) {
                println!("@@ client: {error}");
            }
        });
    }
    Ok(())
}

/// When the last command was, so that a forgotten VM does not run for ever.
#[derive(Debug, Default)]
struct Activity {
    running: AtomicUsize,
    /// Counts starts and ends; unchanged over the whole limit means idle.
    changes: AtomicU64,
}

struct Counted(Arc<Activity>);

impl Activity {
    fn begin(self: &Arc<Self>) -> Counted {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(self))
    }

    fn end_process_when_idle(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return };
        let (mut since, mut seen) = (Instant::now(), 0);
        loop {
            thread::sleep(Duration::from_secs(5));
            let now = self.changes.load(Ordering::SeqCst);
            if now != seen || self.running.load(Ordering::SeqCst) > 0 {
                (since, seen) = (Instant::now(), now);
            } else if since.elapsed() > limit {
                println!("@@ idle for {} minutes", limit.as_secs() / 60);
                std::process::exit(0);
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changes.fetch_add(1, Ordering::SeqCst);
    }
}

/// The half that several threads write to.
#[derive(Clone)]
struct Writer(Arc<Mutex<TcpStream>>);

impl Writer {
    fn send(&self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::write_frame(&mut *stream, kind, payload)
    }
}

/// One command for one client.
pub(super) fn run(mut stream: TcpStream, token: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let writer = Writer(Arc::new(Mutex::new(stream.try_clone()?)));
    let request = match protocol::read_frame(&mut stream)? {
        (Kind::Request, payload) => Request::decode(&payload),
        (kind, _) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a connection that begins with {kind:?} instead of a request"),
        )),
    };
    let request = match request {
        Ok(request) if request.token == token => request,
        Ok(_) => return writer.send(Kind::Refused, b"the token is not this VM's"),
        Err(error) => return writer.send(Kind::Refused, error.to_string().as_bytes()),
    };
    let mut child = match command_of(&request).spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = request.command[0].to_string_lossy();
            let folder = request.folder.to_string_lossy();
            let text = format!("vm: cannot run {program} in {folder}: {error}\n");
            writer.send(Kind::Stderr, text.as_bytes())?;
            // As a shell: 126 for what cannot be executed, 127 for what is not there.
            let code: i32 = if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            return writer.send(Kind::Exit, &code.to_le_bytes());
        }
    };
    let (ended, outputs) = mpsc::channel();
    let mut open = 0;
    if let Some(stdout) = child.stdout.take() {
        open += 1;
        pump(stdout, Kind::Stdout, writer.clone(), ended.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        open += 1;
        pump(stderr, Kind::Stderr, writer.clone(), ended);
    }
    let over = Arc::new(AtomicBool::new(false));
    let (group, stdin, over_too) = (child.id(), child.stdin.take(), Arc::clone(&over));
    thread::spawn(move || {
        follow_client(&mut stream, stdin);
        if !over_too.load(Ordering::SeqCst) {
            kill_group(group);
        }
    });
    let status = child.wait()?;
    let deadline = Instant::now() + LAST_OUTPUT;
    while open > 0
        && outputs
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            .is_ok()
    {
        open -= 1;
    }
    over.store(true, Ordering::SeqCst);
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    writer.send(Kind::Exit, &code.to_le_bytes())?;
    let stream = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
    stream.shutdown(Shutdown::Both)
}

fn command_of(request: &Request) -> Command {
    let mut command = Command::new(&request.command[0]);
    command
        .args(&request.command[1..])
        .env_clear()
        .envs(
            request
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .current_dir(&request.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // An ordinary user's PATH lacks the folders of ip, rdma and tc, which in here everybody may use.
    let path = request.environment.iter().find(|(name, _)| name == "PATH");
    let mut path = path.map_or_else(Default::default, |(_, value)| value.clone());
    if !path.is_empty() {
        path.push(":");
    }
    path.push(guest::PATH);
    command.env("PATH", path);
    command
}

fn pump(mut from: impl Read + Send + 'static, kind: Kind, to: Writer, ended: Sender<()>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(read) if read > 0 => {
                    if to.send(kind, &buffer[..read]).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        // The other end is gone when the command was given up.
        let _ = ended.send(());
    });
}

/// Feeds the command's input until the client's connection ends.
fn follow_client(stream: &mut TcpStream, mut stdin: Option<ChildStdin>) {
    loop {
        match protocol::read_frame(stream) {
            Ok((Kind::Stdin, payload)) if payload.is_empty() => stdin = None,
            Ok((Kind::Stdin, payload)) => {
                // A command that does not read its input to the end is nothing wrong.
                if stdin
                    .as_mut()
                    .is_some_and(|stdin| stdin.write_all(&payload).is_err())
                {
                    stdin = None;
                }
            }
            Ok(_) | Err(_) => return,
        }
    }
}

fn kill_group(group: u32) {
    let group = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // Fails when all of them have ended meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Reads a file of one line, for the guest's set-up.
pub(super) fn read_line(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

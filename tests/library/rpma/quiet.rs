//! What is written where nobody asked for it, and what where somebody did.

use std::fmt::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use harness::{
    Child, Failed, Need, Outcome, Role, Targets, Test, WAIT, completed, ensure, ensure_eq, listen,
    role_argument, test,
};
use rpma::{ConnectionConfig, ConnectionRequest, PrivateData, Signal};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "nothing_is_written_unless_a_logger_is_there_and_then_no_secret",
            &[Need::Device, Need::Root],
            quiet,
        )
        .long(),
    ]
}

pub(crate) const ROLES: &[Role] = &[("silent", silent), ("logging", logging)];

/// Where programs write for the system's log.
const SYSTEM_LOG: &str = "/dev/log";

fn quiet() -> Outcome {
    // A machine whose log is read by a program already keeps it.
    let log = UnixDatagram::bind(SYSTEM_LOG).ok();
    let outcome = both(log.as_ref());
    if log.is_some() {
        std::fs::remove_file(SYSTEM_LOG)?;
    }
    outcome
}

fn both(log: Option<&UnixDatagram>) -> Outcome {
    let count = "100".to_owned();
    let run = |role| -> Result<harness::Finished, Failed> {
        let limit = Duration::from_secs(200);
        Child::role(role, &count, &[])?.finish(limit)?.success()
    };
    let finished = run("silent")?;
    ensure_eq!(
        (&*finished.stdout, &*finished.stderr),
        ("", ""),
        "written without a logger"
    );
    run("logging")?;
    if let Some(log) = log {
        log.set_nonblocking(true)?;
        let mut line = [0; 1024];
        if let Ok(len) = log.recv(&mut line) {
            let line = String::from_utf8_lossy(&line[..len]);
            return Err(format!("in the system's log: {line}").into());
        }
    }
    Ok(())
}

/// Something that nobody else may see.
const SECRET: &[u8] = b"SECRET-OF-BOTH-SIDES";

/// Connections of each kind that there is something to say about: good ones, refused ones, and ones that are
/// dropped at each stage. What must not be written is returned.
fn connections(count: usize) -> Result<Vec<String>, Failed> {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    let connect = || {
        ConnectionRequest::new(&peer, endpoint.local_addr(), &config)?
            .connect(PrivateData::new(SECRET)?)
    };
    let mut secrets = vec![
        String::from_utf8_lossy(SECRET).into_owned(),
        format!("{SECRET:?}"),
    ];
    for n in 0..count {
        let client = connect()?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        if n % 4 == 1 {
            drop(request);
            client.wait_established(WAIT).err().ok_or("not rejected")?;
            continue;
        }
        let server = request.connect(PrivateData::new(SECRET)?)?;
        client.wait_established(WAIT)?;
        server.wait_established(WAIT)?;
        let pair = harness::Pair {
            client,
            server,
            client_peer: peer.clone(),
            server_peer: peer.clone(),
        };
        let targets = Targets::new(&pair, 64)?;
        let descriptor = targets.server.descriptor();
        let rkey = u32::from_le_bytes([
            descriptor[16],
            descriptor[17],
            descriptor[18],
            descriptor[19],
        ]);
        secrets.extend([format!("{rkey:#x}"), format!("{rkey}")]);
        let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
        pair.client.write(to, from, Signal::Always, 1)?;
        completed(pair.client.cq())?;
        if n % 4 == 2 {
            pair.client.disconnect()?;
            pair.server.next_event(WAIT)?;
        }
    }
    Ok(secrets)
}

fn silent() -> Outcome {
    connections(role_argument().parse()?)?;
    Ok(())
}

fn logging() -> Outcome {
    tracing::subscriber::set_global_default(Keeping)?;
    let count = role_argument().parse()?;
    tracing::debug!("the logger hears");
    let secrets = connections(count)?;
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(!lines.is_empty(), "the logger hears nothing");
    let mut loud = 0;
    for (level, line) in &*lines {
        for secret in &secrets {
            ensure!(!contains_word(line, secret), "{secret} in: {line}");
        }
        loud += usize::from(*level <= Level::INFO);
    }
    // Each connection is made and ends.
    ensure!(
        loud <= 2 * count,
        "{loud} lines at level info and above of {count} connections"
    );
    Ok(())
}

/// Whether `word` stands in `line` by itself: a number may be a part of another.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next())
    })
}

/// What was logged, with its level.
static LINES: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

/// A logger that keeps everything from level debug on.
struct Keeping;

impl Subscriber for Keeping {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((*event.metadata().level(), line.0));
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

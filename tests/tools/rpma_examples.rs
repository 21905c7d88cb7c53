//! The examples of `rpma`, each with itself at the other end.

use std::os::unix::process::CommandExt;
use std::process::Command;

use harness::{
    Child, Failed, Finished, Need, Outcome, Test, device, ensure, ensure_eq, free_rdma_port,
};

use super::program::{LIMIT, local, run, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "each_example_of_rpma_does_its_work_with_itself_at_the_other_end",
            &[Need::Device],
            with_each_other,
        )
        .limit(60)
        .long(),
        test(
            "each_example_of_rpma_refuses_wrong_arguments_and_addresses_in_a_sentence",
            &[Need::Device],
            refusals,
        )
        .long(),
    ]
}

/// An example, and how it is run.
struct Example {
    name: &'static str,
    /// What follows address and port: of the server, of the client.
    server: &'static [&'static str],
    client: &'static [&'static str],
    /// What the two sides say, in small letters.
    server_says: &'static [&'static str],
    client_says: &'static [&'static str],
    /// Whether the server goes on when its client has gone.
    stays: bool,
}

const PLAIN: Example = Example {
    name: "",
    server: &[],
    client: &[],
    server_says: &[],
    client_says: &[],
    stays: false,
};

/// What is said of numbers to and fro that begin with 7.
const FROM_7: &[&str] = &["got 7", "sent 8", "got 8"];
const FROM_7_AT_SERVER: &[&str] = &["server: got 7", "server: sent 8"];
const SEVEN: &[&str] = &["7", "3"];
const SEVEN_SENT: &[&str] = &["sent 7", "got 8"];
const NEW_VALUE: &[&str] = &["is: hello world!"];
const TRANSLATED: &[&str] = &["hello world!", "¡hola mundo!"];

const EXAMPLES: &[Example] = &[
    Example {
        name: "01_connection",
        server_says: &["hello server!"],
        client_says: &["hello client!"],
        ..PLAIN
    },
    Example {
        name: "02_read_to_volatile",
        client_says: &["hello client!"],
        ..PLAIN
    },
    Example {
        name: "03_read_to_persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "04_write_to_persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "05_flush_to_persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "06_multiple_connections",
        client: &["8"],
        server_says: &["- "],
        stays: true,
        ..PLAIN
    },
    Example {
        name: "06_multiple_connections",
        server: &["shared"],
        client: &["9"],
        server_says: &["- "],
        stays: true,
        ..PLAIN
    },
    Example {
        name: "07_atomic_write",
        client: &["1st_word", "2nd_word", "3rd_word"],
        server_says: &["1st_word\n2nd_word\n3rd_word"],
        client_says: &["16"],
        ..PLAIN
    },
    Example {
        name: "08_messages_ping_pong",
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        server: &["m"],
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        server: &["r"],
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "09_flush_to_persistent_gpspm",
        server_says: &["persist", "is: hello world!"],
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "09_flush_to_persistent_gpspm",
        server: &["-", "shared"],
        server_says: &["persist", "is: hello world!"],
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "10_send_with_imm",
        client: &["1234", "hello_imm"],
        server_says: &["got \"hello_imm\", immediate: 1234"],
        client_says: &["1234"],
        ..PLAIN
    },
    Example {
        name: "10_send_with_imm",
        client: &["4294967295"],
        server_says: &["got \"\", immediate: 4294967295"],
        client_says: &["4294967295"],
        ..PLAIN
    },
    Example {
        name: "11_write_with_imm",
        client: &["1234"],
        server_says: &["in memory: 1234, immediate: 1234"],
        ..PLAIN
    },
    Example {
        name: "12_receive_completion_queue",
        client: SEVEN,
        server_says: FROM_7_AT_SERVER,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "12_receive_completion_queue",
        server: &["shared"],
        client: SEVEN,
        server_says: FROM_7_AT_SERVER,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "13_messages_ping_pong_with_srq",
        server: &["0.5"],
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
];

fn ours(example: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(local(env!("CARGO_BIN_EXE_rpma-examples-under-test")));
    command.arg0(example).args(arguments);
    command
}

/// A server that listens, and its port.
struct Server {
    child: Child,
    port: String,
}

impl Example {
    fn our_server(&self) -> Result<Child, Failed> {
        let ip = device().ip.to_string();
        let arguments = [&["server", &*ip, "0"], self.server].concat();
        Child::start(&mut ours(self.name, &arguments))
    }

    fn our_client(&self, port: &str) -> Result<Child, Failed> {
        let ip = device().ip.to_string();
        let arguments = [&["client", &*ip, port], self.client].concat();
        Child::start(&mut ours(self.name, &arguments))
    }

    /// Waits for the end of both sides, which must be a good one.
    fn finish(&self, server: Child, client: Child) -> Outcome {
        let client = client.finish(LIMIT)?;
        self.check("client", client, self.client_says)?;
        if self.stays {
            // It says what it has read before it lets the client go.
            for said in self.server_says {
                server.wait_line(said, LIMIT)?;
            }
            server.signal(libc::SIGTERM)?;
            server.finish(LIMIT)?;
            return Ok(());
        }
        self.check("server", server.finish(LIMIT)?, self.server_says)
    }

    fn check(&self, role: &str, ended: Finished, says: &[&str]) -> Outcome {
        let named = |what: &str| format!("{}, {role}: {what}", self.name);
        let ended = ended
            .success()
            .map_err(|failed| named(failed.message().unwrap_or_default()))?;
        let said = ended.stdout.to_lowercase();
        for expected in says {
            ensure!(
                said.contains(expected),
                "{}",
                named(&format!("no {expected:?} in {said}\n{}", ended.stderr))
            );
        }
        Ok(())
    }
}

fn listening(child: Child) -> Result<Server, Failed> {
    let line = child.wait_line("listening at ", LIMIT)?;
    let port = line.rsplit(':').next().unwrap_or_default().to_owned();
    Ok(Server { child, port })
}

fn with_each_other() -> Outcome {
    // Many at once: most of their time is spent waiting for each other. Each client comes right after its server, some of
    // which give up.
    let mut pairs = Vec::new();
    for example in EXAMPLES {
        let server = listening(example.our_server()?)?;
        let client = example.our_client(&server.port)?;
        pairs.push((example, server.child, client));
    }
    for (example, server, client) in pairs {
        example.finish(server, client)?;
    }
    Ok(())
}

fn refusals() -> Outcome {
    let nobody = free_rdma_port()?.to_string();
    let ip = device().ip.to_string();
    for example in EXAMPLES {
        let name = example.name;
        for arguments in [&[][..], &["neither"], &["server"], &["client", &ip, "high"]] {
            let ended = run(&mut ours(name, arguments))?;
            ensure_eq!(ended.code(), 2, "{name} {arguments:?}: {}", ended.stderr);
            let usage = format!("usage: {name} server ADDRESS PORT");
            ensure!(
                ended.stderr.starts_with(&format!("{name}: ")) && ended.stderr.contains(&usage),
                "{name} {arguments:?}: {}",
                ended.stderr
            );
        }
        // No device has it.
        for role in ["server", "client"] {
            let more = if role == "server" {
                example.server
            } else {
                example.client
            };
            let arguments = [&[role, "127.0.0.1", &*nobody], more].concat();
            let ended = run(&mut ours(name, &arguments))?;
            ensure_eq!(ended.code(), 1, "{name} {arguments:?}: {}", ended.stderr);
            ensure!(
                ended.stderr.starts_with(&format!("{name}: ")) && ended.stderr.lines().count() == 1,
                "{name} {arguments:?}: not one sentence: {}",
                ended.stderr
            );
        }
    }
    Ok(())
}

//! The examples of `rpma`, with each other and with the examples of librpma that they are like.

use std::os::unix::process::CommandExt;
use std::process::Command;

use harness::{
    Child, Failed, Finished, Need, Outcome, Test, c_example, device, ensure, ensure_eq,
    free_rdma_port, wait_for_rdma_listener,
};

use super::program::{LIMIT, local, run, test};

pub(crate) fn tests() -> Vec<Test> {
    let with_c = [Need::Device, Need::CExamples];
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
        test(
            "the_server_of_each_example_of_rpma_serves_the_client_of_its_c_twin",
            &with_c,
            || EXAMPLES.iter().try_for_each(|example| example.serves_c()),
        )
        .long(),
        test(
            "the_client_of_each_example_of_rpma_works_with_the_server_of_its_c_twin",
            &with_c,
            || EXAMPLES.iter().try_for_each(|example| example.asks_c()),
        )
        .long(),
    ]
}

/// An example, and how it is run.
struct Example {
    name: &'static str,
    /// The folder of the C program that is like it.
    twin: &'static str,
    /// What follows address and port: of our server, of the C server, of either client.
    server: &'static [&'static str],
    c_server: &'static [&'static str],
    client: &'static [&'static str],
    /// What the two sides say, in small letters: ours, and behind a bar the C program where its words are others.
    server_says: &'static [&'static str],
    client_says: &'static [&'static str],
    /// Whether the server goes on when its client has gone.
    stays: bool,
}

const PLAIN: Example = Example {
    name: "",
    twin: "",
    server: &[],
    c_server: &[],
    client: &[],
    server_says: &[],
    client_says: &[],
    stays: false,
};

/// What is said of numbers to and fro that begin with 7.
const FROM_7: &[&str] = &["got 7|received: 7", "sent 8|sent: 8", "got 8|received: 8"];
const FROM_7_AT_SERVER: &[&str] = &["server: got 7|received: 7", "server: sent 8|sent: 8"];
const SEVEN: &[&str] = &["7", "3"];
const SEVEN_SENT: &[&str] = &["sent 7|sent: 7", "got 8|received: 8"];
const NEW_VALUE: &[&str] = &["is: hello world!|value: hello world!"];
const TRANSLATED: &[&str] = &["hello world!", "¡hola mundo!"];

const EXAMPLES: &[Example] = &[
    Example {
        name: "01_connection",
        twin: "01-connection",
        server_says: &["hello server!"],
        client_says: &["hello client!"],
        ..PLAIN
    },
    Example {
        name: "02_read_to_volatile",
        twin: "02-read-to-volatile",
        client_says: &["hello client!"],
        ..PLAIN
    },
    Example {
        name: "03_read_to_persistent",
        twin: "03-read-to-persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "04_write_to_persistent",
        twin: "04-write-to-persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "05_flush_to_persistent",
        twin: "05-flush-to-persistent",
        server_says: NEW_VALUE,
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "06_multiple_connections",
        twin: "06-multiple-connections",
        client: &["8"],
        server_says: &["- "],
        stays: true,
        ..PLAIN
    },
    Example {
        name: "06_multiple_connections",
        twin: "06scch-multiple-connections",
        server: &["shared"],
        client: &["9"],
        server_says: &["- "],
        stays: true,
        ..PLAIN
    },
    Example {
        name: "07_atomic_write",
        twin: "07-atomic-write",
        client: &["1st_word", "2nd_word", "3rd_word"],
        server_says: &["1st_word\n2nd_word\n3rd_word"],
        client_says: &["16"],
        ..PLAIN
    },
    Example {
        name: "08_messages_ping_pong",
        twin: "08-messages-ping-pong",
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        twin: "08srq-simple-messages-ping-pong-with-srq",
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        twin: "08srq-simple-messages-ping-pong-with-srq",
        server: &["m"],
        c_server: &["m"],
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "08srq_messages_ping_pong",
        twin: "08srq-simple-messages-ping-pong-with-srq",
        server: &["r"],
        c_server: &["r"],
        client: SEVEN,
        server_says: FROM_7,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "09_flush_to_persistent_gpspm",
        twin: "09-flush-to-persistent-GPSPM",
        server_says: &["persist|flush", "is: hello world!|value: hello world!"],
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "09_flush_to_persistent_gpspm",
        twin: "09scch-flush-to-persistent-GPSPM",
        server: &["-", "shared"],
        server_says: &["persist|flush", "is: hello world!|value: hello world!"],
        client_says: TRANSLATED,
        ..PLAIN
    },
    Example {
        name: "10_send_with_imm",
        twin: "10-send-with-imm",
        client: &["1234", "hello_imm"],
        server_says: &["got \"hello_imm\", immediate: 1234|'hello_imm' with immediate data '1234'"],
        client_says: &["1234"],
        ..PLAIN
    },
    Example {
        name: "10_send_with_imm",
        twin: "10-send-with-imm",
        client: &["4294967295"],
        server_says: &["got \"\", immediate: 4294967295|'' with immediate data '4294967295'"],
        client_says: &["4294967295"],
        ..PLAIN
    },
    Example {
        name: "11_write_with_imm",
        twin: "11-write-with-imm",
        client: &["1234"],
        server_says: &[
            "in memory: 1234, immediate: 1234|'1234' was written together with immediate data '1234'",
        ],
        ..PLAIN
    },
    Example {
        name: "12_receive_completion_queue",
        twin: "12-receive-completion-queue",
        client: SEVEN,
        server_says: FROM_7_AT_SERVER,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "12_receive_completion_queue",
        twin: "12scch-receive-completion-queue",
        server: &["shared"],
        client: SEVEN,
        server_says: FROM_7_AT_SERVER,
        client_says: SEVEN_SENT,
        ..PLAIN
    },
    Example {
        name: "13_messages_ping_pong_with_srq",
        twin: "13-messages-ping-pong-with-srq",
        server: &["0.5"],
        c_server: &["1"],
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

    fn c_program(&self, role: &str, port: &str, more: &[&str]) -> Result<Child, Failed> {
        let ip = device().ip.to_string();
        let mut command = Command::new(c_example(self.twin, role));
        Child::start(command.args([&*ip, port]).args(more))
    }

    fn serves_c(&self) -> Outcome {
        harness::phase(self.twin);
        let server = listening(self.our_server()?)?;
        let client = self.c_program("client", &server.port, self.client)?;
        self.finish(server.child, client)
    }

    fn asks_c(&self) -> Outcome {
        harness::phase(self.twin);
        let port = free_rdma_port()?;
        let text = port.to_string();
        let server = self.c_program("server", &text, self.c_server)?;
        wait_for_rdma_listener("TCP", port)?;
        let client = self.our_client(&text)?;
        self.finish(server, client)
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
        let named = |what: &str| format!("{} ({}), {role}: {what}", self.name, self.twin);
        let ended = ended
            .success()
            .map_err(|failed| named(failed.message().unwrap_or_default()))?;
        let said = ended.stdout.to_lowercase();
        for expected in says {
            ensure!(
                expected.split('|').any(|words| said.contains(words)),
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

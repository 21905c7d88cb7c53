//! `rpma-ping`: parse, run, report, exit code.

use std::process::ExitCode;

use rpma_tools::cli::ping::{self as cli, ClientOptions, Command, Refused, ServerOptions};
use rpma_tools::failure::{Exit, Failure};
use rpma_tools::ping::{self, Hooks};
use rpma_tools::report::{self, Output, TextClient, TextServer};
use rpma_tools::stop::{self, Stop};

fn main() -> ExitCode {
    let stop = Stop::default();
    let mut output = Output::standard(stop.clone());
    let exit = match parse() {
        Ok(command) => run(&command, &stop, &mut output),
        Err(Refused::Shown(text)) => {
            output.text(text);
            Exit::Success
        }
        Err(Refused::Wrong(failure)) => {
            output.failure(&failure);
            failure.exit()
        }
    };
    ExitCode::from(exit.code())
}

fn parse() -> Result<Command, Refused> {
    let hooks = Hooks::from_vars(|name| std::env::var(name).ok())
        .map_err(|sentence| Refused::Wrong(Failure::usage(sentence)))?;
    cli::parse(std::env::args_os(), hooks)
}

fn run(command: &Command, stop: &Stop, output: &mut Output) -> Exit {
    if let Err(error) = stop::on_signals() {
        output.failure(&Failure::failed(format!("cannot take signals: {error}")));
        return Exit::Failed;
    }
    match command {
        Command::Client(options) if options.loopback => loopback(options, stop, output),
        Command::Client(options) => client(options, stop, output),
        Command::Server(options) => server(options, stop, output),
    }
}

fn client(options: &ClientOptions, stop: &Stop, output: &mut Output) -> Exit {
    let observer = &mut TextClient::new(output, options.quiet, options.json);
    let outcome = ping::ping(options, stop, observer);
    if options.json {
        output.line(report::client_document(&outcome));
    } else if outcome.device.is_some() || outcome.interrupted {
        output.text(report::client_summary(&outcome));
    }
    outcome
        .failure
        .iter()
        .for_each(|failure| output.failure(failure));
    outcome.exit()
}

fn loopback(options: &ClientOptions, stop: &Stop, output: &mut Output) -> Exit {
    let observer = &mut TextClient::new(output, options.quiet, options.json);
    let outcome = ping::loopback(options, stop, observer);
    if options.json {
        output.line(report::loopback_document(&outcome));
    } else if outcome
        .client
        .as_ref()
        .is_some_and(|client| client.device.is_some() || client.interrupted)
    {
        output.text(report::loopback_summary(&outcome));
    }
    for failure in outcome.failures() {
        output.failure(failure);
    }
    outcome.exit()
}

fn server(options: &ServerOptions, stop: &Stop, output: &mut Output) -> Exit {
    let observer = &mut TextServer::new(output, options.quiet, options.json);
    let outcome = ping::serve(options, stop, observer);
    if options.json {
        output.line(report::server_document(&outcome));
    } else {
        output.text(report::server_summary(&outcome));
    }
    outcome
        .failure
        .iter()
        .for_each(|failure| output.failure(failure));
    outcome.exit()
}

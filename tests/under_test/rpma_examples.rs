//! The examples of `rpma` in one program, which is whichever it is called as: one to build and to copy
//! instead of many.
#![allow(
    clippy::duplicate_mod,
    reason = "each example has the module that they share"
)]

use std::path::Path;
use std::process::ExitCode;

macro_rules! examples {
    ($($module:ident = $path:literal,)*) => {
        $(
            #[path = $path]
            mod $module;
        )*

        fn main() -> ExitCode {
            let called = std::env::args_os().next().unwrap_or_default();
            let called = Path::new(&called).file_name();
            $(
                if called.is_some() && called == Path::new($path).file_stem() {
                    return $module::main();
                }
            )*
            eprintln!("there is no example {}", called.unwrap_or_default().display());
            ExitCode::from(2)
        }
    };
}

examples! {
    connection = "../../rpma/examples/01_connection.rs",
    read_to_volatile = "../../rpma/examples/02_read_to_volatile.rs",
    read_to_persistent = "../../rpma/examples/03_read_to_persistent.rs",
    write_to_persistent = "../../rpma/examples/04_write_to_persistent.rs",
    flush_to_persistent = "../../rpma/examples/05_flush_to_persistent.rs",
    multiple_connections = "../../rpma/examples/06_multiple_connections.rs",
    atomic_write = "../../rpma/examples/07_atomic_write.rs",
    messages_ping_pong = "../../rpma/examples/08_messages_ping_pong.rs",
    messages_ping_pong_srq = "../../rpma/examples/08srq_messages_ping_pong.rs",
    flush_to_persistent_gpspm = "../../rpma/examples/09_flush_to_persistent_gpspm.rs",
    send_with_imm = "../../rpma/examples/10_send_with_imm.rs",
    write_with_imm = "../../rpma/examples/11_write_with_imm.rs",
    receive_completion_queue = "../../rpma/examples/12_receive_completion_queue.rs",
    messages_ping_pong_with_srq = "../../rpma/examples/13_messages_ping_pong_with_srq.rs",
}

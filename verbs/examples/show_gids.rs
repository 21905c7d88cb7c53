//! Lists the GIDs of all ports: the addresses that a program names by index.
//!
//! ```text
//! cargo run -p verbs --example show_gids -- [DEVICE]
//! ```

use std::fs;
use std::net::Ipv6Addr;
use std::process::ExitCode;

use clap::Parser;
use verbs::{Context, DeviceList, Error, GidEntry, GidType};

/// List the addresses (GIDs) of RDMA devices, with what their packets look like
#[derive(Debug, Parser)]
struct Options {
    /// Only this device
    device: Option<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("show_gids: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("show_gids: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let list = DeviceList::new()?;
    let contexts = match &options.device {
        Some(name) => vec![list.by_name(name)?.open()?],
        None => list
            .iter()
            .map(|device| device.open())
            .collect::<Result<_, _>>()?,
    };
    println!("DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4\t\tVER\tDEV");
    println!("---\t----\t-----\t---\t\t\t\t\t----\t\t---\t---");
    let mut found = 0;
    for context in &contexts {
        for entry in context.gid_table()? {
            println!("{}", line(context, &entry));
            found += 1;
        }
    }
    println!("n_gids_found={found}");
    Ok(())
}

fn line(context: &Context, entry: &GidEntry) -> String {
    let address = Ipv6Addr::from(entry.gid.0);
    let groups = address
        .segments()
        .map(|group| format!("{group:04x}"))
        .join(":");
    let ipv4 = address
        .to_ipv4_mapped()
        .map_or_else(String::new, |ip| ip.to_string());
    let version = match entry.gid_type {
        GidType::ROCE_V1 => "v1",
        GidType::ROCE_V2 => "v2",
        _ => "",
    };
    let (device, port, index) = (context.name(), entry.port, entry.index);
    // The kernel's name of the interface, not the one behind its number: that is of this network namespace.
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}");
    let interface = fs::read_to_string(file).unwrap_or_default();
    format!(
        "{device}\t{port}\t{index}\t{groups}\t{ipv4:12}\t{version}\t{}",
        interface.trim_end()
    )
}

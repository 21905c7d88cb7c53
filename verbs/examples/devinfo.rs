//! Prints what a device is and can do, line for line what `ibv_devinfo -v` prints.
//!
//! ```text
//! cargo run -p verbs --example devinfo -- [-d DEVICE] [-i PORT]
//! ```

use std::fs;
use std::net::Ipv6Addr;
use std::process::ExitCode;

use clap::Parser;
use verbs::{Context, DeviceList, Error, ExtendedAttributes, GidEntry, GidType, sys};

/// Print what RDMA devices are and can do, as `ibv_devinfo -v` does
#[derive(Debug, Parser)]
struct Options {
    /// Only this device
    #[arg(short = 'd', long, value_name = "DEVICE")]
    ib_dev: Option<String>,
    /// Only this port
    #[arg(short = 'i', long, value_name = "PORT")]
    ib_port: Option<u8>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devinfo: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("devinfo: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let list = DeviceList::new()?;
    match &options.ib_dev {
        Some(name) => print_device(&list.by_name(name)?.open()?, options.ib_port),
        // An error when there is none.
        None => list.first().and_then(|_| {
            list.iter()
                .try_for_each(|one| print_device(&one.open()?, options.ib_port))
        }),
    }
}

fn print_device(context: &Context, only_port: Option<u8>) -> Result<(), Error> {
    let extended = context.query_extended()?;
    print_identity(context);
    print_limits(context.attributes().as_raw());
    print_extended(&extended);
    // SAFETY: the context is open; the field is written once, at opening.
    let vectors = unsafe { (*context.as_raw()).num_comp_vectors };
    println!("\tnum_comp_vectors:\t\t{vectors}");
    let ports = match only_port {
        Some(port) => port..=port,
        None => 1..=context.attributes().port_count(),
    };
    for port in ports {
        print_port(context, port)?;
    }
    Ok(())
}

fn print_identity(context: &Context) {
    let attributes = context.attributes();
    let transport = context.transport();
    let transport_name = match transport.raw() {
        0 => "InfiniBand",
        1 => "iWARP",
        4 => "usNIC",
        5 => "usNIC UDP",
        6 => "unspecified",
        _ => "invalid transport",
    };
    println!("hca_id:\t{}", context.name());
    println!("\ttransport:\t\t\t{transport_name} ({})", transport.raw());
    if !attributes.firmware_version().is_empty() {
        println!("\tfw_ver:\t\t\t\t{}", attributes.firmware_version());
    }
    println!("\tnode_guid:\t\t\t{}", guid(attributes.node_guid()));
    println!(
        "\tsys_image_guid:\t\t\t{}",
        guid(attributes.system_image_guid())
    );
    println!("\tvendor_id:\t\t\t{:#06x}", attributes.vendor_id());
    println!("\tvendor_part_id:\t\t\t{}", attributes.vendor_part_id());
    println!("\thw_ver:\t\t\t\t0x{:X}", attributes.hardware_version());
    // Only some drivers have it, and only in the file system.
    let board = format!("/sys/class/infiniband/{}/board_id", context.name());
    if let Ok(board) = fs::read_to_string(board) {
        println!("\tboard_id:\t\t\t{}", board.trim_end());
    }
    println!("\tphys_port_cnt:\t\t\t{}", attributes.port_count());
}

/// `0011:2233:4455:6677`
fn guid(guid: u64) -> String {
    let words = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff));
    words.join(":")
}

fn print_limits(raw: &sys::ibv_device_attr) {
    println!("\tmax_mr_size:\t\t\t{:#x}", raw.max_mr_size);
    println!("\tpage_size_cap:\t\t\t{:#x}", raw.page_size_cap);
    println!("\tmax_qp:\t\t\t\t{}", raw.max_qp);
    println!("\tmax_qp_wr:\t\t\t{}", raw.max_qp_wr);
    println!("\tdevice_cap_flags:\t\t{:#010x}", raw.device_cap_flags);
    print_flags(u64::from(raw.device_cap_flags));
    let before_atomics = [
        ("max_sge:\t\t\t", raw.max_sge),
        ("max_sge_rd:\t\t\t", raw.max_sge_rd),
        ("max_cq:\t\t\t\t", raw.max_cq),
        ("max_cqe:\t\t\t", raw.max_cqe),
        ("max_mr:\t\t\t\t", raw.max_mr),
        ("max_pd:\t\t\t\t", raw.max_pd),
        ("max_qp_rd_atom:\t\t\t", raw.max_qp_rd_atom),
        ("max_ee_rd_atom:\t\t\t", raw.max_ee_rd_atom),
        ("max_res_rd_atom:\t\t", raw.max_res_rd_atom),
        ("max_qp_init_rd_atom:\t\t", raw.max_qp_init_rd_atom),
        ("max_ee_init_rd_atom:\t\t", raw.max_ee_init_rd_atom),
    ];
    print_numbers(&before_atomics);
    let atomics = match raw.atomic_cap.0 {
        0 => "ATOMIC_NONE",
        1 => "ATOMIC_HCA",
        2 => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    };
    println!("\tatomic_cap:\t\t\t{atomics} ({})", raw.atomic_cap.0);
    print_numbers(&[
        ("max_ee:\t\t\t\t", raw.max_ee),
        ("max_rdd:\t\t\t", raw.max_rdd),
        ("max_mw:\t\t\t\t", raw.max_mw),
        ("max_raw_ipv6_qp:\t\t", raw.max_raw_ipv6_qp),
        ("max_raw_ethy_qp:\t\t", raw.max_raw_ethy_qp),
        ("max_mcast_grp:\t\t\t", raw.max_mcast_grp),
        ("max_mcast_qp_attach:\t\t", raw.max_mcast_qp_attach),
        (
            "max_total_mcast_qp_attach:\t",
            raw.max_total_mcast_qp_attach,
        ),
        ("max_ah:\t\t\t\t", raw.max_ah),
        ("max_fmr:\t\t\t", raw.max_fmr),
    ]);
    if raw.max_fmr != 0 {
        println!("\tmax_map_per_fmr:\t\t{}", raw.max_map_per_fmr);
    }
    println!("\tmax_srq:\t\t\t{}", raw.max_srq);
    if raw.max_srq != 0 {
        println!("\tmax_srq_wr:\t\t\t{}", raw.max_srq_wr);
        println!("\tmax_srq_sge:\t\t\t{}", raw.max_srq_sge);
    }
    println!("\tmax_pkeys:\t\t\t{}", raw.max_pkeys);
    println!("\tlocal_ca_ack_delay:\t\t{}", raw.local_ca_ack_delay);
}

fn print_numbers(numbers: &[(&str, i32)]) {
    for (name, value) in numbers {
        println!("\t{name}{value}");
    }
}

/// Each bit by its name on a line of its own, and at last those without a name. Of a value with bits above the lower 32,
/// those only.
fn print_flags(flags: u64) {
    let [low, high] = [u64::from(u32::MAX), !u64::from(u32::MAX)];
    let shown = if flags & high == 0 {
        flags & low
    } else {
        flags & high
    };
    let mut unknown = shown;
    for (name, flag) in verbs::DeviceCapFlags::from_bits_retain(shown).iter_names() {
        // Flags of later releases than the program's that this is like.
        if !["FLUSH_GLOBAL", "FLUSH_PERSISTENT", "ATOMIC_WRITE"].contains(&name) {
            println!("\t\t\t\t\t{name}");
            unknown &= !flag.bits();
        }
    }
    if unknown != 0 {
        println!("\t\t\t\t\tUnknown flags: 0x{unknown:X}");
    }
}

fn print_extended(extended: &ExtendedAttributes) {
    let raw = extended.as_raw();
    let odp = extended.on_demand_paging();
    println!("\tgeneral_odp_caps:");
    let general = ["ODP_SUPPORT", "ODP_SUPPORT_IMPLICIT"];
    print_bits(odp.general.bits(), &general);
    for (name, caps) in [
        ("rc", odp.rc),
        ("uc", odp.uc),
        ("ud", odp.ud),
        ("xrc", odp.xrc),
    ] {
        println!("\t{name}_odp_caps:");
        if caps.is_empty() {
            println!("\t\t\t\t\tNO SUPPORT");
        }
        let operations = ["SEND", "RECV", "WRITE", "READ", "ATOMIC", "SRQ_RECV"];
        print_bits(
            caps.bits().into(),
            &operations.map(|name| format!("SUPPORT_{name}")),
        );
    }
    match raw.completion_timestamp_mask {
        0 => println!("\tcompletion_timestamp_mask not supported"),
        mask => println!("\tcompletion_timestamp_mask:\t\t\t{mask:#018x}"),
    }
    match raw.hca_core_clock {
        0 => println!("\tcore clock not supported"),
        clock => println!("\thca_core_clock:\t\t\t{clock}kHZ"),
    }
    if raw.raw_packet_caps != 0 {
        println!("\traw packet caps:");
        let names = [
            "C-VLAN stripping offload",
            "Scatter FCS offload",
            "IP csum offload",
            "Delay drop",
        ];
        print_bits(raw.raw_packet_caps.into(), &names);
    }
    println!("\tdevice_cap_flags_ex:\t\t0x{:X}", raw.device_cap_flags_ex);
    if raw.device_cap_flags_ex >> 32 != 0 {
        print_flags(raw.device_cap_flags_ex);
    }
    println!("\ttso_caps:\n\t\tmax_tso:\t\t\t{}", raw.tso_caps.max_tso);
    print_types(raw.tso_caps.max_tso, raw.tso_caps.supported_qpts);
    let rss = &raw.rss_caps;
    println!("\trss_caps:");
    println!(
        "\t\tmax_rwq_indirection_tables:\t\t\t{}",
        rss.max_rwq_indirection_tables
    );
    println!(
        "\t\tmax_rwq_indirection_table_size:\t\t\t{}",
        rss.max_rwq_indirection_table_size
    );
    println!("\t\trx_hash_function:\t\t\t\t{:#x}", rss.rx_hash_function);
    println!(
        "\t\trx_hash_fields_mask:\t\t\t\t0x{:X}",
        rss.rx_hash_fields_mask
    );
    print_types(rss.supported_qpts, rss.supported_qpts);
    println!("\tmax_wq_type_rq:\t\t\t{}", raw.max_wq_type_rq);
    let pacing = &raw.packet_pacing_caps;
    println!("\tpacket_pacing_caps:");
    println!("\t\tqp_rate_limit_min:\t{}kbps", pacing.qp_rate_limit_min);
    println!("\t\tqp_rate_limit_max:\t{}kbps", pacing.qp_rate_limit_max);
    print_types(pacing.qp_rate_limit_max, pacing.supported_qpts);
    print_tag_matching(&raw.tm_caps);
    let moderation = &raw.cq_mod_caps;
    if moderation.max_cq_count != 0 {
        println!("\n\tcq moderation caps:");
        println!("\t\tmax_cq_count:\t{}", moderation.max_cq_count);
        println!("\t\tmax_cq_period:\t{} us\n", moderation.max_cq_period);
    }
    if raw.max_dm_size != 0 {
        println!(
            "\tmaximum available device memory:\t{}Bytes\n",
            raw.max_dm_size
        );
    }
}

/// The names of the bits that are set, a line each.
fn print_bits(bits: u64, names: &[impl std::fmt::Display]) {
    for (bit, name) in names.iter().enumerate() {
        if bits & 1 << bit != 0 {
            println!("\t\t\t\t\t{name}");
        }
    }
}

/// The types of queue pair that have a capability which is there unless `present` is 0.
fn print_types(present: u32, types: u32) {
    if present == 0 {
        return;
    }
    println!("\t\tsupported_qp:");
    for (number, name) in [(2, "RC"), (3, "UC"), (4, "UD"), (8, "RAW_PACKET")] {
        if types & 1 << number != 0 {
            println!("\t\t\t\t\tSUPPORT_{name}");
        }
    }
}

fn print_tag_matching(caps: &sys::ibv_tm_caps) {
    if caps.max_num_tags == 0 {
        println!("\ttag matching not supported");
        return;
    }
    println!("\tmax_rndv_hdr_size:\t\t{}", caps.max_rndv_hdr_size);
    println!("\tmax_num_tags:\t\t\t{}", caps.max_num_tags);
    println!("\tmax_ops:\t\t\t{}", caps.max_ops);
    println!("\tmax_sge:\t\t\t{}", caps.max_sge);
    println!("\tflags:");
    if caps.flags & 1 != 0 {
        println!("\t\t\t\t\tIBV_TM_CAP_RC");
    }
}

fn print_port(context: &Context, port: u8) -> Result<(), Error> {
    let attributes = context.query_port(port)?;
    let raw = attributes.as_raw();
    let state = match raw.state.0 {
        1 => "PORT_DOWN",
        2 => "PORT_INIT",
        3 => "PORT_ARMED",
        4 => "PORT_ACTIVE",
        _ => "invalid state",
    };
    let link_layer = match raw.link_layer {
        0 => "Unspecified",
        1 => "InfiniBand",
        2 => "Ethernet",
        _ => "Unknown",
    };
    println!("\t\tport:\t{port}");
    println!("\t\t\tstate:\t\t\t{state} ({})", raw.state.0);
    println!("\t\t\tmax_mtu:\t\t{} ({})", mtu(raw.max_mtu), raw.max_mtu.0);
    println!(
        "\t\t\tactive_mtu:\t\t{} ({})",
        mtu(raw.active_mtu),
        raw.active_mtu.0
    );
    println!("\t\t\tsm_lid:\t\t\t{}", raw.sm_lid);
    println!("\t\t\tport_lid:\t\t{}", raw.lid);
    println!("\t\t\tport_lmc:\t\t{:#04x}", raw.lmc);
    println!("\t\t\tlink_layer:\t\t{link_layer}");
    println!("\t\t\tmax_msg_sz:\t\t{:#x}", raw.max_msg_sz);
    println!("\t\t\tport_cap_flags:\t\t{:#010x}", raw.port_cap_flags);
    println!("\t\t\tport_cap_flags2:\t{:#06x}", raw.port_cap_flags2);
    let lanes = match raw.max_vl_num {
        number @ (1 | 2) => number.to_string(),
        3 => "4".to_owned(),
        4 => "8".to_owned(),
        5 => "15".to_owned(),
        _ => "invalid value".to_owned(),
    };
    println!("\t\t\tmax_vl_num:\t\t{lanes} ({})", raw.max_vl_num);
    println!("\t\t\tbad_pkey_cntr:\t\t{:#x}", raw.bad_pkey_cntr);
    println!("\t\t\tqkey_viol_cntr:\t\t{:#x}", raw.qkey_viol_cntr);
    println!("\t\t\tsm_sl:\t\t\t{}", raw.sm_sl);
    println!("\t\t\tpkey_tbl_len:\t\t{}", raw.pkey_tbl_len);
    println!("\t\t\tgid_tbl_len:\t\t{}", raw.gid_tbl_len);
    println!("\t\t\tsubnet_timeout:\t\t{}", raw.subnet_timeout);
    println!("\t\t\tinit_type_reply:\t{}", raw.init_type_reply);
    println!(
        "\t\t\tactive_width:\t\t{}X ({})",
        width(raw.active_width),
        raw.active_width
    );
    println!(
        "\t\t\tactive_speed:\t\t{} ({})",
        speed(raw.active_speed),
        raw.active_speed
    );
    if raw.link_layer < 2 || raw.phys_state != 0 {
        println!(
            "\t\t\tphys_state:\t\t{} ({})",
            physical(raw.phys_state),
            raw.phys_state
        );
    }
    for entry in context
        .gid_table()?
        .iter()
        .filter(|entry| entry.port == u32::from(port))
    {
        println!("\t\t\tGID[{:3}]:\t\t{}", entry.index, gid(entry));
    }
    println!();
    Ok(())
}

fn mtu(mtu: sys::ibv_mtu) -> String {
    match mtu.0 {
        number @ 1..=5 => (128 << number).to_string(),
        _ => "invalid MTU".to_owned(),
    }
}

fn width(width: u8) -> &'static str {
    match width {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    }
}

fn speed(speed: u8) -> &'static str {
    match speed {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        _ => "invalid speed",
    }
}

fn physical(state: u8) -> &'static str {
    match state {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// RoCE's second version uses IP addresses, all others groups of four digits; InfiniBand has but one version.
fn gid(entry: &GidEntry) -> String {
    let address = Ipv6Addr::from(entry.gid.0);
    let groups = address
        .segments()
        .map(|group| format!("{group:04x}"))
        .join(":");
    match entry.gid_type {
        GidType::IB => groups,
        GidType::ROCE_V1 => format!("{groups}, RoCE v1"),
        GidType::ROCE_V2 => format!("{address}, RoCE v2"),
        other => format!("{groups}, {other}"),
    }
}

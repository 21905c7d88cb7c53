//! What a window is to be bound to stays registered until it is.

use verbs::{AccessFlags, MemoryRegion, SendFlags, WindowBind};

fn region_closed(region: MemoryRegion) {
    let bind = WindowBind {
        wr_id: 1,
        region: &region,
        offset: 0,
        len: 8,
        access: AccessFlags::REMOTE_READ,
        flags: SendFlags::SIGNALED,
    };
    let _ = region.close(); //~ E0505
    let _ = format!("{bind:?}");
}

fn main() {}

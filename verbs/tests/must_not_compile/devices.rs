//! A device is part of the list that it was found in.

use verbs::{Device, DeviceList};

fn list_dropped(list: DeviceList) {
    let device = list.first().expect("a device");
    drop(list); //~ E0505
    let _ = device.open();
}

fn list_too_short_lived<'a>() -> Option<Device<'a>> {
    let list = DeviceList::new().ok()?;
    return list.first().ok(); //~ E0515
    #[allow(unreachable_code)]
    None
}

fn main() {}

//! Requests point into memory of their thread, and a device into its list: they stay in their thread.

use verbs::{DeviceList, RecvRequest, SendRequest, Sge};

fn send_request(list: &[Sge]) {
    let request = SendRequest::send(1, list);
    std::thread::scope(|scope| {
        scope.spawn(|| format!("{request:?}")); //~ E0277
    });
}

fn recv_request(list: &[Sge]) {
    let request = RecvRequest::new(1, list);
    std::thread::scope(|scope| {
        scope.spawn(move || format!("{request:?}")); //~ E0277
    });
}

fn device(list: &DeviceList) {
    let device = list.first().expect("a device");
    std::thread::scope(|scope| {
        scope.spawn(move || device.open()); //~ E0277
    });
    let _ = device.open();
}

fn main() {}

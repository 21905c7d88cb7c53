//! A request borrows its list of SGEs, and what else it points to.

use verbs::{AddressHandle, RecvRequest, RemoteAddr, SendRequest, Sge};

fn list_dropped(list: Vec<Sge>) {
    let request = SendRequest::send(1, &list);
    drop(list); //~ E0505
    let _ = request.opcode();
}

fn list_changed(list: &mut [Sge], other: Sge) {
    let request = RecvRequest::new(1, list);
    list[0] = other; //~ E0506
    let _ = format!("{request:?}");
}

fn list_too_short_lived(sge: Sge) {
    let mut request = SendRequest::send(1, &[]);
    {
        let list = [sge];
        request = SendRequest::send(2, &list); //~ E0597
    }
    let _ = request.opcode();
}

fn several(sge: Sge, remote: RemoteAddr) {
    let mut requests = Vec::new();
    for n in 0..4 {
        let list = [sge];
        requests.push(SendRequest::write(n, &list, remote)); //~ E0597
    }
    let _ = requests.iter().map(SendRequest::opcode).count();
}

fn address_closed(list: &[Sge], address: AddressHandle) {
    let request = SendRequest::datagram(1, list, &address, 2, 3);
    let _ = address.close(); //~ E0505
    let _ = request.opcode();
}

fn main() {}

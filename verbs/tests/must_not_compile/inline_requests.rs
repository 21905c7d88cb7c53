//! An inline request is safe to post because it borrows its bytes until then.

use verbs::{InlineRequest, RemoteAddr};

fn bytes_dropped(bytes: Vec<u8>) {
    let request = InlineRequest::send(1, &bytes);
    drop(bytes); //~ E0505
    let _ = format!("{request:?}");
}

fn bytes_changed(mut bytes: [u8; 8], remote: RemoteAddr) {
    let request = InlineRequest::write(1, &bytes, remote);
    bytes[0] = 1; //~ E0506
    let _ = format!("{request:?}");
}

fn bytes_too_short_lived<'a>() -> InlineRequest<'a> {
    let bytes = [0; 8];
    return InlineRequest::send(1, &bytes); //~ E0515
    #[allow(unreachable_code)]
    InlineRequest::send(1, &[])
}

fn main() {}

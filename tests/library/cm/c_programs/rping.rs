//! `rping`: the client tells where its memory is, the server reads it and writes it back.

use harness::{
    Child, Failed, Outcome, Test, WAIT, device, ensure_eq, free_rdma_port, test,
    wait_for_rdma_listener,
};
use rpma::cm::verbs::{
    AccessFlags, QueuePair, RecvRequest, RemoteAddr, RemoteKey, SendFlags, SendRequest, WcStatus,
};
use rpma::cm::{ConnParams, Connection, ConnectionEvent, Deadline};

use super::{address, asks_for_the_usual, ended, needs, start};
use crate::raw::{Buffer, Queues, listener, poll, resolve};

pub(crate) fn tests() -> Vec<Test> {
    let needs = needs("rping");
    vec![
        test(
            "an_rping_client_gets_back_what_it_lets_us_read",
            &needs,
            a_client,
        ),
        test(
            "an_rping_client_notices_a_byte_that_is_not_its_own",
            &needs,
            a_wrong_byte,
        ),
        test(
            "an_rping_client_hears_that_it_is_rejected",
            &needs,
            rejected,
        ),
        test(
            "an_rping_server_reads_and_writes_where_it_is_told",
            &needs,
            a_server,
        ),
        test(
            "an_rping_server_notices_a_key_and_a_message_that_are_wrong",
            &needs,
            wrong_messages_to_a_server,
        ),
    ]
}

/// Bytes of each ping.
const SIZE: usize = 48;
const PINGS: usize = 3;
/// A message: address, key and length, in network byte order.
const MESSAGE: usize = 16;
/// Where in the memory of [`Queues`] messages are received.
const RECEIVED: usize = 64;

/// The text of a client's ping, without the zero byte at its end.
fn ping(number: usize) -> String {
    let head = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number);
    let text = head.bytes().chain(letters).map(char::from);
    text.take(SIZE - 1).collect()
}

/// One end of a ping.
struct End {
    connection: Connection,
    queues: Queues,
    /// What the other end may read and write.
    shared: Buffer,
}

impl End {
    fn receive(queues: &Queues, qp: &QueuePair) -> Outcome {
        let sges = [queues.buffer.sge(RECEIVED, MESSAGE)];
        let mut request = RecvRequest::new(1, &sges);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { qp.post_recv(&mut request) }?)
    }

    fn shared(queues: &Queues) -> Result<Buffer, Failed> {
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        Buffer::with_access(&queues.pd, 4096, access)
    }

    /// Posts a request and waits until it is done.
    fn post(&self, request: SendRequest<'_>) -> Result<WcStatus, Failed> {
        let mut request = request.with_flags(SendFlags::SIGNALED);
        // SAFETY: all memory is of buffers, which are registered and to which no reference is formed.
        unsafe { self.connection.qp().post_send(&mut request) }?;
        Ok(poll(&self.queues.send_cq)?.status())
    }

    fn send(&self, bytes: &[u8]) -> Outcome {
        self.queues.buffer.store(0, bytes);
        let sges = [self.queues.buffer.sge(0, bytes.len())];
        let status = self.post(SendRequest::send(2, &sges))?;
        ensure_eq!(status, WcStatus::SUCCESS, "a message");
        Ok(())
    }

    /// Waits for a message, and makes room for the next.
    fn next(&self) -> Result<(RemoteAddr, usize), Failed> {
        let completion = poll(&self.queues.recv_cq)?;
        ensure_eq!(
            completion.result()?.byte_len(),
            16,
            "the length of a message"
        );
        let bytes = self.queues.buffer.load(RECEIVED, MESSAGE);
        Self::receive(&self.queues, self.connection.qp())?;
        let addr = u64::from_be_bytes(bytes[..8].try_into()?);
        let key = u32::from_be_bytes(bytes[8..12].try_into()?);
        let len = u32::from_be_bytes(bytes[12..].try_into()?);
        let place = RemoteAddr {
            addr,
            rkey: RemoteKey(key),
        };
        Ok((place, len.try_into()?))
    }

    fn ensure_ended(&self) -> Outcome {
        let event = self.connection.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
        self.connection.disconnect()?;
        Ok(())
    }
}

/// A client that was accepted.
fn accepted(more: &[&str]) -> Result<(Child, End), Failed> {
    let listener = listener()?;
    let port = listener.local_addr().port().to_string();
    let (ip, pings, size) = (address(), PINGS.to_string(), SIZE.to_string());
    let arguments = ["-c", "-a", &ip, "-p", &port, "-C", &pings, "-S", &size];
    let client = start("rping", &[&arguments, more].concat())?;
    let deadline = Deadline::after(WAIT);
    let request = listener.next_request(deadline)?;
    asks_for_the_usual(&request)?;
    let (queues, qp) = Queues::new(request.context())?;
    let shared = End::shared(&queues)?;
    request.init_qp(&qp)?;
    End::receive(&queues, &qp)?;
    let connection = request.accept(qp, &ConnParams::default(), b"is not read")?;
    connection.wait_established(deadline)?;
    let end = End {
        connection,
        queues,
        shared,
    };
    Ok((client, end))
}

/// Serves one ping, with `damage` done to what is written back.
fn serve(end: &End, damage: impl FnOnce(&mut [u8])) -> Result<String, Failed> {
    let (from, len) = end.next()?;
    ensure_eq!(len, SIZE, "the bytes to read");
    let sges = [end.shared.sge(0, len)];
    let status = end.post(SendRequest::read(3, &sges, from))?;
    ensure_eq!(status, WcStatus::SUCCESS, "reading the client's memory");
    let mut bytes = end.shared.load(0, len);
    let text = String::from_utf8_lossy(&bytes[..len - 1]).into_owned();
    ensure_eq!(bytes[len - 1], 0, "the end of a text");
    end.send(&[0; MESSAGE])?;
    let (to, len) = end.next()?;
    ensure_eq!(len, SIZE, "the room to write to");
    damage(&mut bytes);
    end.shared.store(0, &bytes);
    let status = end.post(SendRequest::write(4, &sges, to))?;
    ensure_eq!(status, WcStatus::SUCCESS, "writing the client's memory");
    end.send(&[0; MESSAGE])?;
    Ok(text)
}

/// With queue pairs of librdmacm, and of the program's own.
const BOTH: [&[&str]; 2] = [&[], &["-q"]];

fn a_client() -> Outcome {
    for own in BOTH {
        let (client, end) = accepted(&[own, &["-v", "-V"]].concat())?;
        for number in 0..PINGS {
            let text = serve(&end, |_| {})?;
            ensure_eq!(text, ping(number), "what was read");
        }
        end.ensure_ended()?;
        let lines: Vec<_> = (0..PINGS)
            .map(|number| format!("ping data: {}", ping(number)))
            .collect();
        let finished = client.finish(WAIT)?;
        ended(&finished, 0, &["client DISCONNECT EVENT..."])?;
        ensure_eq!(finished.stdout, lines.join("\n"), "what the client printed");
    }
    Ok(())
}

fn a_wrong_byte() -> Outcome {
    let (client, end) = accepted(&["-v", "-V"])?;
    serve(&end, |_| {})?;
    serve(&end, |bytes| bytes[SIZE / 2] ^= 1)?;
    end.ensure_ended()?;
    let finished = client.finish(WAIT)?;
    ended(
        &finished,
        255,
        &["data mismatch!", "rping client failed: -1"],
    )?;
    let first = format!("ping data: {}", ping(0));
    ensure_eq!(finished.stdout, first, "what the client printed");
    Ok(())
}

fn rejected() -> Outcome {
    let listener = listener()?;
    let port = listener.local_addr().port().to_string();
    let client = start("rping", &["-c", "-a", &address(), "-p", &port, "-C", "1"])?;
    listener
        .next_request(Deadline::after(WAIT))?
        .reject(b"busy")?;
    let lines = ["cma event RDMA_CM_EVENT_REJECTED, error 28"];
    ended(&client.finish(WAIT)?, 255, &lines)
}

/// A server, and us connected to it.
fn served(more: &[&str]) -> Result<(Child, End), Failed> {
    let port = free_rdma_port()?;
    let (ip, number) = (address(), port.to_string());
    let arguments = ["-s", "-v", "-a", &ip, "-p", &number];
    let server = start("rping", &[&arguments, more].concat())?;
    wait_for_rdma_listener("TCP", port)?;
    let resolved = resolve(device().addr(port))?;
    let (queues, qp) = Queues::new(resolved.context())?;
    let shared = End::shared(&queues)?;
    resolved.init_qp(&qp)?;
    End::receive(&queues, &qp)?;
    let connection = resolved.connect(qp, &ConnParams::default(), b"is not read")?;
    connection.wait_established(Deadline::after(WAIT))?;
    let end = End {
        connection,
        queues,
        shared,
    };
    Ok((server, end))
}

/// The message that tells of the shared memory from `offset` on.
fn told(end: &End, offset: u64, len: u32) -> Vec<u8> {
    let region = end.shared.region();
    let address = region.addr() as u64 + offset;
    let key = region.rkey().0;
    [
        &address.to_be_bytes()[..],
        &key.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

fn a_server() -> Outcome {
    const SINK: usize = 1024;
    for own in BOTH {
        let (server, end) = served(own)?;
        for number in 0..PINGS {
            let text = ping(number);
            end.shared.store(0, &[text.as_bytes(), &[0]].concat());
            end.shared.store(SINK, &[0xff; SIZE + 1]);
            let len = u32::try_from(SIZE)?;
            end.send(&told(&end, 0, len))?;
            end.next()?;
            end.send(&told(&end, SINK as u64, len))?;
            end.next()?;
            let written = [text.as_bytes(), &[0, 0xff]].concat();
            ensure_eq!(
                end.shared.load(SINK, SIZE + 1),
                written,
                "what the server wrote"
            );
        }
        end.connection.disconnect()?;
        let lines: Vec<_> = (0..PINGS)
            .map(|number| format!("server ping data: {}", ping(number)))
            .collect();
        let finished = server.finish(WAIT)?;
        ended(&finished, 0, &["server DISCONNECT EVENT..."])?;
        ensure_eq!(finished.stdout, lines.join("\n"), "what the server printed");
    }
    Ok(())
}

fn wrong_messages_to_a_server() -> Outcome {
    let wrong_key = |end: &End| {
        let mut message = told(end, 0, u32::try_from(SIZE)?);
        message[8..12].copy_from_slice(&(!end.shared.region().rkey().0).to_be_bytes());
        Ok::<_, Failed>(message)
    };
    let too_short = |end: &End| Ok(told(end, 0, u32::try_from(SIZE)?)[1..].to_vec());
    type Make<'a> = &'a dyn Fn(&End) -> Result<Vec<u8>, Failed>;
    let cases: [(Make<'_>, &str); 2] = [
        // The peer's error of access.
        (&wrong_key, "cq completion failed status 10"),
        (&too_short, "Received bogus data, size 15"),
    ];
    for (message, line) in cases {
        let (server, end) = served(&[])?;
        end.send(&message(&end)?)?;
        end.ensure_ended()?;
        ended(&server.finish(WAIT)?, 255, &[line])?;
    }
    Ok(())
}

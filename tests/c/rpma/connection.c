/* Connections made, refused and ended with librpma.
 *
 * own=SEED peer=SEED   the private data: 40 bytes of the sequence, counted on per connection
 * connections=N        one after the other, all open at the same time
 * refusals=N           a server refuses so many requests first, a client must be refused as often
 * ends=self|peer       who ends the connections */
#include "peer.h"

#define LENGTH 40
#define MAX_CONNECTIONS 16

static void nap(void)
{
	struct timespec time = { .tv_nsec = 20 * 1000 * 1000 };

	nanosleep(&time, NULL);
}

/* The zeros behind the data belong to what is checked. */
static void check_data(struct rpma_conn *connection, uint64_t n)
{
	const uint8_t *data = received_data(connection);

	expect(data, number("peer", 2) + n, LENGTH, "private data");
	expect_all(data + LENGTH, 0, (is_client() ? RESPONSE_ROOM : REQUEST_ROOM) - LENGTH, "padding of private data");
}

static struct rpma_conn *connect_despite_refusals(struct rpma_peer *peer, uint8_t *data, uint64_t refusals)
{
	struct rpma_conn_private_data sent = { .ptr = data, .len = LENGTH };

	for (uint64_t refused = 0;; refused++) {
		struct rpma_conn_req *request = new_request(peer, NULL);
		enum rpma_conn_event event;
		struct rpma_conn *connection;

		done(rpma_conn_req_connect(&request, &sent, &connection), "rpma_conn_req_connect");
		event = next_event(connection);
		if (event == RPMA_CONN_ESTABLISHED) {
			must(refused == refusals, "as often refused as it should be");
			return connection;
		}
		must(event == RPMA_CONN_REJECTED && refused < refusals, "refused no more often than it should be");
		delete_connection(connection);
		nap();
	}
}

int main(int argc, char **argv)
{
	struct rpma_conn *connections[MAX_CONNECTIONS];
	struct rpma_ep *endpoint = NULL;
	struct rpma_peer *peer;
	uint64_t count, refusals;
	uint8_t data[LENGTH];

	begin(argc, argv);
	count = number("connections", 1);
	refusals = number("refusals", 0);
	must(count <= MAX_CONNECTIONS, "at most 16 connections");
	peer = make_peer();
	if (!is_client()) {
		endpoint = listen_somewhere(peer);
		for (uint64_t n = 0; n < refusals; n++) {
			struct rpma_conn_req *request = next_request(endpoint, NULL);

			done(rpma_conn_req_delete(&request), "rpma_conn_req_delete");
		}
	}
	for (uint64_t n = 0; n < count; n++) {
		fill(data, number("own", 1) + n, LENGTH);
		if (is_client())
			connections[n] = connect_despite_refusals(peer, data, n ? 0 : refusals);
		else
			connections[n] = establish(next_request(endpoint, NULL), data, LENGTH);
		check_data(connections[n], n);
	}
	say("established");
	for (uint64_t n = 0; n < count; n++)
		end(connections[n]);
	for (uint64_t n = 0; n < count; n++)
		delete_connection(connections[n]);
	if (endpoint)
		done(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
	/* Requests that librpma has refused keep their ids, and with them nothing of the peer. */
	done(rpma_peer_delete(&peer), "rpma_peer_delete");
	return 0;
}

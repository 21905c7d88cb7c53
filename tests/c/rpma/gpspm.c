/* The general purpose server persistency method with librpma: the client writes, then asks the
 * server by a message to make a range persistent, and waits for the answer.
 *
 * own=SEED peer=SEED   the client's bytes; the server looks at them when it is asked to persist
 * rounds=N             ranges of 1024 bytes, one after the other */
#include "peer.h"

#define PIECE 1024
#define SIZE 8192
#define REQUEST 27
#define RESPONSE 9
#define MESSAGES 1024
#define IN 512 /* where messages are received; they are sent from the start */

static struct rpma_mr_local *message_region;
static uint8_t *messages;
static struct rpma_cq *cq, *rcq;

/* A field of eight bytes: its tag, then the value, least significant byte first. */
static void put(uint8_t *to, uint8_t tag, uint64_t value)
{
	uint64_t le = htole64(value);

	*to = tag;
	memcpy(to + 1, &le, 8);
}

static uint64_t get(const uint8_t *from, uint8_t tag)
{
	uint64_t le;

	if (*from != tag)
		wrong("tag of a field", 0, *from, tag);
	memcpy(&le, from + 1, 8);
	return le64toh(le);
}

static void expect_length(const struct ibv_wc *wc, unsigned length)
{
	must(wc->opcode == IBV_WC_RECV, "a message was received");
	if (wc->byte_len != length)
		wrong("length of the message", 0, wc->byte_len, length);
}

static void ask(struct rpma_conn *connection, uint64_t offset, uint64_t length, uint64_t context)
{
	struct ibv_wc wc;

	put(messages, 0x09, offset);
	put(messages + 9, 0x11, length);
	put(messages + 18, 0x19, context);
	done(rpma_recv(connection, message_region, IN, MESSAGES - IN, NULL), "rpma_recv");
	done(rpma_send(connection, message_region, 0, REQUEST, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_send");
	wc = completion(cq);
	must(wc.opcode == IBV_WC_SEND, "the request was sent");
	wc = completion(rcq);
	expect_length(&wc, RESPONSE);
	if (get(messages + IN, 0x09) != context)
		wrong("number in the response", 1, (unsigned)get(messages + IN, 0x09), (unsigned)context);
}

static void write_and_ask(struct rpma_peer *peer, struct rpma_conn *connection)
{
	struct exchanged in = received_description(connection);
	struct rpma_mr_remote *theirs = remote_region(&in);
	uint8_t *memory = pages(SIZE);
	struct rpma_mr_local *region;

	done(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_SRC, &region), "rpma_mr_reg");
	for (uint64_t round = 0; round < number("rounds", 3); round++) {
		fill(memory, number("own", 1) + round, PIECE);
		done(rpma_write(connection, theirs, in.data_offset + round * PIECE, region, 0, PIECE,
				RPMA_F_COMPLETION_ON_ERROR, NULL),
		     "rpma_write");
		ask(connection, in.data_offset + round * PIECE, PIECE, 0xf01d + round);
	}
	done(rpma_mr_dereg(&region), "rpma_mr_dereg");
	done(rpma_mr_remote_delete(&theirs), "rpma_mr_remote_delete");
	free(memory);
}

/* Answers as many requests as are announced; the receive for the first is posted already. */
static void serve(struct rpma_conn *connection, const uint8_t *memory)
{
	for (uint64_t round = 0; round < number("rounds", 3); round++) {
		struct ibv_wc wc = completion(rcq);
		uint64_t offset, length, context;

		expect_length(&wc, REQUEST);
		offset = get(messages + IN, 0x09);
		length = get(messages + IN + 9, 0x11);
		context = get(messages + IN + 18, 0x19);
		must(offset <= SIZE && length <= SIZE - offset, "the range lies in the region");
		expect(memory + offset, number("peer", 2) + round, length, "range to be made persistent");
		done(rpma_recv(connection, message_region, IN, MESSAGES - IN, NULL), "rpma_recv");
		put(messages, 0x09, context);
		done(rpma_send(connection, message_region, 0, RESPONSE, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_send");
		wc = completion(cq);
		must(wc.opcode == IBV_WC_SEND, "the response was sent");
	}
}

int main(int argc, char **argv)
{
	struct rpma_conn_cfg *config;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct rpma_mr_local *region;
	struct rpma_ep *endpoint = NULL;
	struct exchanged out;
	struct rpma_peer *peer;
	uint8_t *memory;

	begin(argc, argv);
	peer = make_peer();
	memory = pages(SIZE);
	messages = pages(4096);
	done(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &region),
	     "rpma_mr_reg");
	done(rpma_mr_reg(peer, messages, MESSAGES, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &message_region),
	     "rpma_mr_reg");
	done(rpma_conn_cfg_new(&config), "rpma_conn_cfg_new");
	/* As in the examples: one message is received at a time. */
	done(rpma_conn_cfg_set_rcq_size(config, 1), "rpma_conn_cfg_set_rcq_size");
	out = describe(region, 0);
	out.data_offset = 64;
	if (!is_client())
		endpoint = listen_somewhere(peer);
	request = is_client() ? new_request(peer, config) : next_request(endpoint, config);
	if (!is_client())
		done(rpma_conn_req_recv(request, message_region, IN, MESSAGES - IN, NULL), "rpma_conn_req_recv");
	connection = is_client() ? establish(request, NULL, 0) : establish(request, &out, sizeof(out));
	done(rpma_conn_get_cq(connection, &cq), "rpma_conn_get_cq");
	done(rpma_conn_get_rcq(connection, &rcq), "rpma_conn_get_rcq");
	say("established");
	if (is_client())
		write_and_ask(peer, connection);
	else
		serve(connection, memory);
	end(connection);
	delete_connection(connection);
	if (endpoint)
		done(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
	done(rpma_conn_cfg_delete(&config), "rpma_conn_cfg_delete");
	done(rpma_mr_dereg(&region), "rpma_mr_dereg");
	done(rpma_mr_dereg(&message_region), "rpma_mr_dereg");
	done(rpma_peer_delete(&peer), "rpma_peer_delete");
	free(memory);
	free(messages);
	return 0;
}

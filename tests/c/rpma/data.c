/* One side operates on the memory of the other, with librpma. The memory of either side is:
 * 1024 bytes of its sequence, 1024 bytes for the other's, 8 for an atomic write, and a rest that
 * nobody may touch.
 *
 * own=SEED peer=SEED                the sequences
 * does=operate|watch                who operates; it also ends the connection
 * op=read|write|atomic|imm          what is done
 * flush=visibility|persistent       what the write is followed by
 * flushes=native                    flushes are operations of the device, as newer releases do them */
#include "peer.h"

#define PIECE 1024
#define ROOM PIECE
#define WORD (2 * PIECE)
#define SIZE 4096
#define UNTOUCHED 0xee
/* Older headers do not know it. */
#define WC_FLUSH ((enum ibv_wc_opcode)8)

static uint32_t immediate(uint64_t seed)
{
	return (uint32_t)(seed * 0x01020304u + 5);
}

static void expect_completion(struct rpma_conn *connection, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;

	done(rpma_conn_get_cq(connection, &cq), "rpma_conn_get_cq");
	wc = completion(cq);
	must(wc.wr_id == wr_id, "the completion is that of the last operation");
	must(wc.opcode == opcode, "the completion's opcode");
}

static int flush_type(void)
{
	return is("flush", "persistent") ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
}

/* Without the other side's configuration there is no flush to persistence. */
static void apply_configuration(struct rpma_conn *connection, struct rpma_mr_remote *region,
				const struct exchanged *in)
{
	struct rpma_peer_cfg *config;

	must(rpma_flush(connection, region, ROOM, PIECE, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, NULL) ==
		     RPMA_E_NOSUPP,
	     "a flush to persistence is refused before the configuration is applied");
	done(rpma_peer_cfg_from_descriptor(in->descriptors + in->region_size, in->config_size, &config),
	     "rpma_peer_cfg_from_descriptor");
	done(rpma_conn_apply_remote_peer_cfg(connection, config), "rpma_conn_apply_remote_peer_cfg");
	done(rpma_peer_cfg_delete(&config), "rpma_peer_cfg_delete");
}

static void flush(struct rpma_conn *connection, struct rpma_mr_remote *region, size_t offset, size_t length,
		  uint64_t number)
{
	done(rpma_flush(connection, region, offset, length, flush_type(), RPMA_F_COMPLETION_ALWAYS, (void *)number),
	     "rpma_flush");
	expect_completion(connection, number, is("flushes", "native") ? WC_FLUSH : IBV_WC_RDMA_READ);
}

static void operate(struct rpma_peer *peer, struct rpma_conn *connection, struct rpma_mr_local *own)
{
	struct exchanged in = received_description(connection);
	struct rpma_mr_remote *theirs = remote_region(&in);
	int flags = RPMA_F_COMPLETION_ALWAYS;
	uint8_t *copy = pages(SIZE);
	struct rpma_mr_local *copy_region;
	size_t size;
	char word[8];

	done(rpma_mr_remote_get_size(theirs, &size), "rpma_mr_remote_get_size");
	if (size != SIZE)
		wrong("size of the region", 0, (unsigned)size, SIZE);
	if (is("flush", "persistent"))
		apply_configuration(connection, theirs, &in);
	done(rpma_mr_reg(peer, copy, SIZE, RPMA_MR_USAGE_READ_DST, &copy_region), "rpma_mr_reg");
	if (is("op", "read")) {
		done(rpma_read(connection, copy_region, 0, theirs, 0, PIECE, flags, (void *)7), "rpma_read");
		expect_completion(connection, 7, IBV_WC_RDMA_READ);
		expect(copy, number("peer", 2), PIECE, "memory read");
	} else if (is("op", "imm")) {
		done(rpma_write_with_imm(connection, theirs, ROOM, own, 0, PIECE, flags, immediate(number("own", 1)),
					 (void *)8),
		     "rpma_write_with_imm");
		expect_completion(connection, 8, IBV_WC_RDMA_WRITE);
	} else {
		done(rpma_write(connection, theirs, ROOM, own, 0, PIECE, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_write");
		flush(connection, theirs, ROOM, PIECE, 9);
		if (is("op", "atomic")) {
			fill(word, number("own", 1) + 1, sizeof(word));
			done(rpma_atomic_write(connection, theirs, WORD, word, flags, (void *)10), "rpma_atomic_write");
			expect_completion(connection, 10, IBV_WC_RDMA_WRITE);
			flush(connection, theirs, WORD, sizeof(word), 11);
		}
	}
	done(rpma_mr_dereg(&copy_region), "rpma_mr_dereg");
	done(rpma_mr_remote_delete(&theirs), "rpma_mr_remote_delete");
	free(copy);
}

static void expect_immediate(struct rpma_conn *connection)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	uint32_t expected = immediate(number("peer", 2));

	done(rpma_conn_get_cq(connection, &cq), "rpma_conn_get_cq");
	wc = completion(cq);
	must(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM), "a write with immediate");
	must(wc.byte_len == PIECE, "as many bytes as were written");
	if (ntohl(wc.imm_data) != expected)
		wrong("immediate", 0, ntohl(wc.imm_data), expected);
}

/* The memory once the other side has ended the connection. */
static void check_memory(const uint8_t *memory)
{
	uint64_t theirs = number("peer", 2);

	expect(memory, number("own", 1), PIECE, "own sequence");
	if (is("op", "read"))
		expect_all(memory + ROOM, UNTOUCHED, PIECE, "room");
	else
		expect(memory + ROOM, theirs, PIECE, "memory written");
	if (is("op", "atomic"))
		expect(memory + WORD, theirs + 1, 8, "atomic write");
	else
		expect_all(memory + WORD, UNTOUCHED, 8, "word");
	expect_all(memory + WORD + 8, UNTOUCHED, SIZE - WORD - 8, "rest");
}

int main(int argc, char **argv)
{
	int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
		    RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_RECV;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct rpma_mr_local *region;
	struct rpma_ep *endpoint = NULL;
	struct exchanged out;
	struct rpma_peer *peer;
	uint8_t *memory;
	int watches, persistent;

	begin(argc, argv);
	watches = is("does", "watch");
	persistent = is("flush", "persistent");
	peer = make_peer();
	memory = pages(SIZE);
	fill(memory, number("own", 1), PIECE);
	if (persistent)
		usage |= RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
	done(rpma_mr_reg(peer, memory, SIZE, usage, &region), "rpma_mr_reg");
	out = describe(region, persistent);
	if (!is_client())
		endpoint = listen_somewhere(peer);
	request = is_client() ? new_request(peer, NULL) : next_request(endpoint, NULL);
	/* A write with immediate takes a receive, whose memory it leaves alone. */
	if (watches && is("op", "imm"))
		done(rpma_conn_req_recv(request, region, SIZE - 1, 1, NULL), "rpma_conn_req_recv");
	connection = establish(request, &out, sizeof(out));
	say("established");
	if (watches) {
		if (is("op", "imm"))
			expect_immediate(connection);
		end(connection);
		check_memory(memory);
	} else {
		operate(peer, connection, region);
		end(connection);
	}
	delete_connection(connection);
	if (endpoint)
		done(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
	done(rpma_mr_dereg(&region), "rpma_mr_dereg");
	done(rpma_peer_delete(&peer), "rpma_peer_delete");
	free(memory);
	return 0;
}

/* What librpma makes of descriptors, given in hexadecimal: of a region, "SIZE FLUSH_TYPES"; of a peer's
 * configuration, whether it writes directly; of what it refuses, the number of the error.
 *
 * usage: descriptor (region|config HEX)... */
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define ROOM 256

static size_t bytes(const char *hex, uint8_t *out)
{
	size_t len = strlen(hex) / 2;

	if (len > ROOM)
		len = ROOM;
	for (size_t n = 0; n < len; n++) {
		unsigned byte = 0;

		sscanf(hex + 2 * n, "%2x", &byte);
		out[n] = (uint8_t)byte;
	}
	return len;
}

static void region(const uint8_t *descriptor, size_t len)
{
	struct rpma_mr_remote *remote;
	int ret = rpma_mr_remote_from_descriptor(descriptor, len, &remote);
	size_t size = 0;
	int types = 0;

	if (ret) {
		printf("%d\n", ret);
		return;
	}
	rpma_mr_remote_get_size(remote, &size);
	rpma_mr_remote_get_flush_type(remote, &types);
	printf("%#zx %#x\n", size, (unsigned)types);
	rpma_mr_remote_delete(&remote);
}

static void config(const uint8_t *descriptor, size_t len)
{
	struct rpma_peer_cfg *peer;
	int ret = rpma_peer_cfg_from_descriptor(descriptor, len, &peer);
	uint8_t again = 0xff;
	bool direct = false;

	if (ret) {
		printf("%d\n", ret);
		return;
	}
	rpma_peer_cfg_get_direct_write_to_pmem(peer, &direct);
	rpma_peer_cfg_get_descriptor(peer, &again);
	printf("%d %02x\n", direct, again);
	rpma_peer_cfg_delete(&peer);
}

int main(int argc, char **argv)
{
	uint8_t descriptor[ROOM];

	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED);
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED);
	for (int n = 1; n + 1 < argc; n += 2) {
		size_t len = bytes(argv[n + 1], descriptor);

		if (!strcmp(argv[n], "region"))
			region(descriptor, len);
		else
			config(descriptor, len);
	}
	return 0;
}

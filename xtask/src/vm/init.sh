#!/bin/sh
# The first process of the guest, under busybox: load the modules in their order, put a writable layer over the host's
# root, mount the shared folders, and hand over to the agent.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1

stage() { read -r up rest </proc/uptime; echo "@@ $1 $up"; }
fail() { echo "@@ failed: $1"; $B sleep 0.2; $B poweroff -f; $B sleep 60; }
# The value of the word $1= on the kernel's command line; %20 stands for a blank.
arg() {
    for word in $($B cat /proc/cmdline); do
        case $word in "$1"=*) echo "${word#*=}" | $B sed 's/%20/ /g; s/%25/%/g' ;; esac
    done
}

stage init
[ "$(arg vm.probe)" = 1 ] && $B poweroff -f
for m in /modules/*.ko; do $B insmod "$m" || echo "@@ not loaded: $m"; done

NINEP=trans=virtio,version=9p2000.L,msize=512000
# The host's root is frozen while the guest runs, so it may be cached without limits.
$B mount -t 9p -o ro,$NINEP,cache=loose root /lower || fail "the host's root cannot be mounted over 9p"
LOWER=/lower
if [ "$(arg vm.layer)" = 1 ]; then
    $B mount -t 9p -o ro,$NINEP,cache=loose layer /layer || fail "the newer libraries cannot be mounted over 9p"
    LOWER=/layer:/lower
fi
$B mount -t tmpfs -o size=75% tmpfs /ov
$B mkdir /ov/upper /ov/work
$B mount -t overlay -o lowerdir=$LOWER,upperdir=/ov/upper,workdir=/ov/work overlay /root || fail "no overlay over the host's root"
R=/root
$B mkdir -p $R/proc $R/sys $R/dev $R/run
$B mount -t proc proc $R/proc
$B mount -t sysfs sys $R/sys
$B mount -t devtmpfs dev $R/dev
$B mkdir -p $R/dev/pts $R/dev/shm
$B mount -t devpts devpts $R/dev/pts
$B mount -t tmpfs tmpfs $R/dev/shm
$B mount -t tmpfs tmpfs $R/run
$B ln -sf /proc/self/fd $R/dev/fd
for i in 0:stdin 1:stdout 2:stderr; do $B ln -sf "/proc/self/fd/${i%%:*}" "$R/dev/${i#*:}"; done

# Shared folders change under the guest's feet: cache=mmap sees that (cache=loose would run stale binaries).
n=0
while :; do
    share=$(arg "vm.share$n")
    [ -n "$share" ] || break
    $B mkdir -p "$R$share"
    $B mount -t 9p -o rw,$NINEP,cache=mmap "share$n" "$R$share" || fail "the shared folder $share cannot be mounted"
    n=$((n + 1))
done

$B ip link set lo up
$B hostname rdma-vm
stage root
exec $B switch_root $R "$(arg vm.agent)" vm-agent "$(arg vm.port)"

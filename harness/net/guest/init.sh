#!/bin/busybox sh
# First process of the guest: modules, the host's root read-only under a writable layer in memory, then the second stage.
/bin/busybox --install -s /bin
export PATH=/bin
die() { echo "guest: $*"; reboot -f; }
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for module in $(cat /load); do insmod "/$module" || echo "guest: insmod $module failed"; done
for word in $(cat /proc/cmdline); do case $word in lb.*) eval "${word#lb.}" ;; esac; done
date -s "@$now" >/dev/null
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,cache=$3,$4" "$1" "$2"; }
share root /lower loose ro || die "the host's root can't be mounted"
mount -t tmpfs -o mode=755 tmpfs /upper; mkdir /upper/u /upper/w
mount -t overlay -o lowerdir=/lower,upperdir=/upper/u,workdir=/upper/w overlay /new || die "no overlay"
for folder in dev proc sys run tmp; do mkdir -p /new/$folder; done
for folder in dev proc sys; do mount --move /$folder /new/$folder; done
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts; mount -t tmpfs tmpfs /new/dev/shm; mount -t tmpfs -o mode=755 tmpfs /new/run
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup; mount -t bpf bpf /new/sys/fs/bpf
# The kernel loads modules by itself through this modprobe.
mkdir -p /new/run/guest /new/lib/modules; cp /bin/busybox /main.sh /new/run/guest/; ln -s busybox /new/run/guest/modprobe
ln -s "$modules" "/new/lib/modules/$(uname -r)"
echo /run/guest/modprobe > /new/proc/sys/kernel/modprobe
[ -z "$writable" ] || { mkdir -p "/new$writable"; share writable "/new$writable" none rw || die "no writable folder"; }
exec switch_root /new /run/guest/main.sh

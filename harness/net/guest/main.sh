#!/run/guest/busybox sh
# Second stage: run the script on the host's file system, send back what it prints and its status, power off.
box=/run/guest/busybox
for word in $($box cat /proc/cmdline); do case $word in lb.*) eval "${word#lb.}" ;; esac; done
port() { for p in /sys/class/virtio-ports/*; do [ "$($box cat "$p/name")" = "$1" ] && echo "/dev/${p##*/}"; done; }
status=$(port status)
$box ip link set lo up; $box hostname guest
/run/guest/modprobe tun  # its device node comes with the module
if [ -n "$end" ]; then  # one end of a wire between two guests: eth0, 10.99.0.1 or 10.99.0.2
  /run/guest/modprobe virtio_net
  $box ip link set eth0 up; $box ip addr add "10.99.0.$end/24" dev eth0; $box hostname "guest$end"
fi
echo "guest: ready at $($box cut -d' ' -f1 /proc/uptime) s"
if [ "$interactive" = 1 ]; then
  $box setsid -c /bin/bash "$script" </dev/hvc0 >/dev/hvc0 2>&1
else
  $box setsid /bin/bash "$script" </dev/null >"$(port out)" 2>"$(port err)"
fi
code=$?
echo "guest: done at $($box cut -d' ' -f1 /proc/uptime) s, status $code"
echo $code >"$status"
$box sync; $box reboot -f

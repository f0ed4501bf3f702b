#!/run/guest/busybox sh
# Second stage: run the script on the host's file system, send back what it prints and its status, power off.
box=/run/guest/busybox
for word in $($box cat /proc/cmdline); do case $word in lb.*) eval "${word#lb.}" ;; esac; done
port() { for p in /sys/class/virtio-ports/*; do [ "$($box cat "$p/name")" = "$1" ] && echo "/dev/${p##*/}"; done; }
status=$(port status)
$box ip link set lo up; $box hostname guest
/run/guest/modprobe tun  # its device node comes with the module
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

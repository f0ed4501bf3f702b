#!/bin/sh
# Makes a machine part of a lab. The Vagrantfile calls it on every machine; so does the guest tier, in two machines
# under QEMU; by hand it works on any Debian. Run as root, as often as you like: at every start, since an address that is
# set here is gone by then; what is installed already is not fetched again, and address and SSH do not wait for it.
#
#   LB_ROLE          host, controller, both, or alone (no lab: namespaces on this machine)
#   LB_KEYS          folder with user, user.pub, host<N>, host<N>.pub (provision.sh keys FOLDER N makes one)
#   LB_NUMBER        of this host, from 1
#   LB_DATA          its address on the data network, such as 10.99.0.1/24
#   LB_INTERFACE     of the data network; default: the one Ethernet interface that has no address
#   LB_MTU           of the data network; default 1500
#   LB_MACHINES      for the controller: control=data for each host, such as "192.168.57.11=10.99.0.1 ..."
#   LB_OFFLINE       folder with wheels (make wheelhouse, and torch's, which that leaves out) and with .deb files of the
#                    packages that the machine lacks: nothing is fetched
#   LB_TORCH_INDEX   address of an index that has torch's wheels for CPUs; without it the usual one comes, which on x86_64
#                    brings CUDA's libraries: 8 GiB of disk
#   LB_SOURCE        lossbench's own folder, to install from; default: the folder of this script
#   LB_PYTHON        an interpreter that has lossbench's packages already: nothing is installed
#   LB_PREFIX        where files go; default /opt/lossbench
set -eu

PREFIX=${LB_PREFIX:-/opt/lossbench}
SOURCE=${LB_SOURCE:-$(cd "$(dirname "$0")" && pwd)}
CUDA_KIB=8388608 # that torch's usual wheel for x86_64 takes with what it brings
PORT=22022 # a server of our own: the machine's own SSH stays as it is
PID=/run/lossbench-sshd.pid # of this start of the machine
SSHD=$(command -v sshd || echo /usr/sbin/sshd)

fail() { echo "provision: $*" >&2; exit 1; }

make_keys() { # FOLDER HOSTS
    umask 077
    mkdir -p "$1"
    for name in user $(seq -f host%g 1 "$2"); do
        [ -f "$1/$name" ] || ssh-keygen -q -t ed25519 -N "" -C "lossbench $name" -f "$1/$name"
    done
}

PACKAGES="python3 python3-venv gcc libc6-dev openssh-server openssh-client iproute2 ethtool"

missing_packages() {
    for name in $PACKAGES; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ] || echo "$name"
    done
}

install_packages() { # those that are missing alone: a machine that starts again needs no way out
    [ -z "${LB_PYTHON:-}" ] || return 0
    export DEBIAN_FRONTEND=noninteractive
    if [ -n "${LB_OFFLINE:-}" ]; then
        set -- "$LB_OFFLINE"/*.deb
        [ ! -e "$1" ] || dpkg --skip-same-version -i "$@" || fail "dpkg could not install the .deb files of $LB_OFFLINE"
        return
    fi
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    apt-get update -q
    apt-get install -q -y --no-install-recommends $missing
}

has_torch() { # on the machine, or among the wheels
    "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && return
    ls "$LB_OFFLINE"/torch-*.whl > /dev/null 2>&1
}

stamp() { # of what would be installed
    if [ -n "${LB_OFFLINE:-}" ]; then
        # ours by its content: its version stays the same from day to day
        (cd "$LB_OFFLINE" && { find . -name '*.whl' -printf '%f %s\n'; find . -name 'lossbench-*.whl' -exec cksum {} +; } | sort | cksum)
    else
        (cd "$SOURCE" && find harness workloads netem_profiles pyproject.toml constraints.txt -type f ! -name '*.pyc' \
            -exec cksum {} + | sort | cksum)
    fi
}

install_torch() { # before the rest, which would take the usual one
    "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && return
    if [ -n "${LB_TORCH_INDEX:-}" ]; then
        "$PYTHON" -m pip install -q -c "$SOURCE/constraints.txt" --index-url "$LB_TORCH_INDEX" torch
    elif [ "$(uname -m)" = x86_64 ] && [ "$(df -P -k "$PREFIX" | awk 'NR == 2 {print $4}')" -lt $CUDA_KIB ]; then
        fail "torch would bring CUDA's libraries, and $PREFIX has no 8 GiB free: LB_TORCH_INDEX, LB_OFFLINE, or a larger disk"
    fi
}

install_lossbench() {
    PYTHON=${LB_PYTHON:-$PREFIX/venv/bin/python}
    [ -z "${LB_PYTHON:-}" ] || return 0
    now=$(stamp)
    if [ -x "$PREFIX/venv/bin/lossbench" ] && [ "$(cat "$PREFIX/installed" 2> /dev/null)" = "$now" ]; then return; fi
    [ -x "$PYTHON" ] || python3 -m venv --system-site-packages "$PREFIX/venv"
    if [ -n "${LB_OFFLINE:-}" ]; then
        has_torch || fail "no torch: make wheelhouse leaves it out; put its wheels into $LB_OFFLINE (pip download torch)"
        "$PYTHON" -m pip install -q --no-index --find-links "$LB_OFFLINE" lossbench
        # pip keeps what has the same version, whatever its code
        "$PYTHON" -m pip install -q --no-index --find-links "$LB_OFFLINE" --force-reinstall --no-deps lossbench
    else
        install_torch
        "$PYTHON" -m pip install -q -c "$SOURCE/constraints.txt" "$SOURCE"
    fi
    ln -sf "$PREFIX/venv/bin/lossbench" /usr/local/bin/lossbench
    echo "$now" > "$PREFIX/installed"
}

data_interface() {
    [ -z "${LB_INTERFACE:-}" ] || { echo "$LB_INTERFACE"; return; }
    found=""
    for path in /sys/class/net/*; do
        name=${path##*/}
        [ "$(cat "$path/type")" = 1 ] && [ -e "$path/device" ] || continue
        mine=$(ip -4 -o addr show dev "$name" | awk '{print $4}')
        [ "$mine" != "$LB_DATA" ] || { echo "$name"; return; } # of an earlier call
        [ -n "$mine" ] || found="$found $name"
    done
    set -- $found
    [ $# = 1 ] || fail "which interface is the data network's? LB_INTERFACE says so (candidates:${found:- none})"
    echo "$1"
}

set_up_data() {
    interface=$(data_interface)
    ip link set dev "$interface" mtu "${LB_MTU:-1500}" up
    ip addr replace "$LB_DATA" dev "$interface"
    echo "$interface" > "$PREFIX/interface"
}

serves() { # a number alone may be anybody's by now
    [ -f "$PID" ] && [ "$(cat "/proc/$(cat "$PID")/comm" 2> /dev/null)" = sshd ]
}

served="" # by this run: its number may not be written yet

serve_ssh() {
    install -m 600 "$LB_KEYS/host$LB_NUMBER" "$PREFIX/host_key"
    install -m 600 "$LB_KEYS/user.pub" "$PREFIX/authorized_keys"
    mkdir -p /run/sshd
    pam=no
    [ ! -f /etc/pam.d/sshd ] || pam=yes # without it sshd lets nobody into an account whose password is locked
    cat > "$PREFIX/sshd_config" <<EOF
Port $PORT
HostKey $PREFIX/host_key
AuthorizedKeysFile $PREFIX/authorized_keys
PidFile $PID
StrictModes no
UsePAM $pam
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers root
EOF
    if [ -n "$served" ] || serves; then return; fi
    served=yes
    if [ -d /run/systemd/system ]; then
        cat > /etc/systemd/system/lossbench-ssh.service <<EOF
[Unit]
Description=SSH for lossbench's lab
After=network.target
[Service]
RuntimeDirectory=sshd
RuntimeDirectoryPreserve=yes
ExecStart=$SSHD -D -f $PREFIX/sshd_config
[Install]
WantedBy=multi-user.target
EOF
        systemctl daemon-reload
        systemctl enable -q --now lossbench-ssh.service
    else
        "$SSHD" -f "$PREFIX/sshd_config"
    fi
}

write_lab() { # lab.toml, and an ssh configuration with the host keys that we made: nobody is trusted at first sight
    install -m 600 "$LB_KEYS/user" "$PREFIX/user"
    printf 'ssh_config = "ssh_config"\n' > "$PREFIX/lab.toml"
    : > "$PREFIX/ssh_config"
    : > "$PREFIX/known_hosts"
    number=0
    for machine in $LB_MACHINES; do
        number=$((number + 1))
        control=${machine%%=*} data=${machine#*=}
        cat >> "$PREFIX/ssh_config" <<EOF
Host node$number
    HostName $control
EOF
        echo "[$control]:$PORT $(cut -d' ' -f1,2 "$LB_KEYS/host$number.pub")" >> "$PREFIX/known_hosts"
        cat >> "$PREFIX/lab.toml" <<EOF

[[machine]]
ssh = "node$number"
address = "$data"
control = "$control"
python = "$PYTHON"
EOF
    done
    cat >> "$PREFIX/ssh_config" <<EOF
Host *
    User root
    Port $PORT
    IdentityFile $PREFIX/user
    IdentitiesOnly yes
    UserKnownHostsFile $PREFIX/known_hosts
EOF
    echo "lossbench lab check $PREFIX/lab.toml"
}

if [ "${1:-}" = keys ]; then
    make_keys "$2" "$3"
    exit
fi
[ "$(id -u)" = 0 ] || fail "run as root"
mkdir -p "$PREFIX"
case "${LB_ROLE:?host, controller, both or alone}" in
host | both) # before anything is fetched: a machine that starts again without a way out is back in its lab
    if command -v ip > /dev/null; then set_up_data; fi
    if [ -x "$SSHD" ]; then serve_ssh; fi ;;
esac
install_packages
install_lossbench
SSHD=$(command -v sshd || echo /usr/sbin/sshd)
case "$LB_ROLE" in
host) set_up_data; serve_ssh ;;
controller) write_lab ;;
both) set_up_data; serve_ssh; write_lab ;;
alone) echo "lossbench run quickstart" ;;
*) fail "no role '$LB_ROLE'" ;;
esac

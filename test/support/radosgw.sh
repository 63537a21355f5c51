#!/bin/sh
# Starts Ceph's S3 server on this machine's loopback, with all of its data in memory and in a folder of its own, and
# keeps it until standard input ends. Needs Debian's packages ceph-mon, ceph-osd, ceph-common and radosgw.
#   sh test/support/radosgw.sh PORT      says "ready" when it answers; the key's id is "reader", the key "secret"
set -eu
port=$1
monitor_port=$((port + 1))
dir=$(mktemp -d)
processes=""
end() {
  [ "$?" = 0 ] || tail -50 "$dir/out" >&2
  kill -9 $processes 2>"$dir/out" || true
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 1' INT TERM

# What is started must not wait for our standard input.
exec 3<&0 </dev/null
fsid=$(cat /proc/sys/kernel/random/uuid)
osd_uuid=$(cat /proc/sys/kernel/random/uuid)
cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = [v1:127.0.0.1:$monitor_port]
public addr = 127.0.0.1
ms bind msgr2 = false
ms bind port min = $((port + 10))
ms bind port max = $((port + 90))
auth cluster required = none
auth service required = none
auth client required = none
run dir = $dir
admin socket = $dir/\$cluster-\$name.asok
log file = $dir/\$name.log
crash dir = $dir
mon data = $dir/mon
mon allow pool size one = true
mon warn on pool no redundancy = false
osd data = $dir/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd class load list = *
osd class default list = *
rgw frontends = beast endpoint=127.0.0.1:$port
rgw data = $dir/rgw
rgw usage max user shards = 1
rgw enable ops log = false
CONF
export CEPH_CONF="$dir/ceph.conf"
mkdir "$dir/rgw"

monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$monitor_port]" "$dir/monmap" >"$dir/out" 2>&1
ceph-mon --mkfs -i a --monmap "$dir/monmap" >>"$dir/out" 2>&1
ceph-mon -f -i a >>"$dir/out" 2>&1 &
processes="$processes $!"
timeout 60 ceph osd new "$osd_uuid" 0 >>"$dir/out" 2>&1
mkdir "$dir/osd"
ceph-osd --mkfs -i 0 --osd-uuid "$osd_uuid" >>"$dir/out" 2>&1
start_osd() {
  ceph-osd -f -i 0 >>"$dir/out" 2>&1 &
  osd=$!
  processes="$processes $osd"
}
start_osd
tries=0
# One that sends its first command before it knows the monitor's map is told "wrong fsid", and ends: it is started again.
until grep -qs "done with init" "$dir/osd.0.log"; do
  kill -0 "$osd" 2>/dev/null || start_osd
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || exit 1
  sleep 0.1
done
timeout 120 radosgw-admin user create --uid=kv --display-name=kv --access-key=reader --secret=secret >>"$dir/out" 2>&1
radosgw -f -n client.rgw >>"$dir/out" 2>&1 &
processes="$processes $!"
tries=0
until curl -s -o "$dir/answer" "http://127.0.0.1:$port/"; do
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || exit 1
  sleep 0.1
done
echo ready
cat <&3 >"$dir/rest"

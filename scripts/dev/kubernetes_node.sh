# Sourced by scripts/try-kubernetes after kubernetes_server.sh: a node beside the API server, and the chart on it.
# shellcheck shell=bash disable=SC2154

send=$repo/.venv/bin/remora
python=$repo/.venv/bin/python

pod_addresses=198.51.100.0/24 # of documentation, as the node's

start_node() {
    hide_the_host
    make_pause_image
    configure_containerd
    configure_kubelet
    started containerd containerd --config "$work/containerd.toml"
    until_true 60 containerd ctr version
    import_images
    started kube-controller-manager kube-controller-manager --kubeconfig="$KUBECONFIG" --bind-address=127.0.0.1 \
        --service-account-private-key-file="$work/accounts.key" --leader-elect=false
    started kube-scheduler kube-scheduler --kubeconfig="$KUBECONFIG" --bind-address=127.0.0.1 --leader-elect=false
    started kubelet kubelet --config="$work/kubelet.yaml" --kubeconfig="$KUBECONFIG" --root-dir="$work/kubelet" \
        --cert-dir="$work/certificates" --hostname-override=node --node-ip="$node_address"
    until_true 90 "the node" kubectl wait --for condition=Ready node/node --timeout 1s
}

# Folders that have one place on a host are empty here, and kubelet's settings of the kernel stay in files of ours.
hide_the_host() {
    local each folder
    mount --make-rshared /
    for folder in /run /var/log /var/lib/cni; do
        [[ -d $folder ]] || { mkdir "$folder" && echo "$folder" >>"$work/made"; } # finish removes it
        mount -t tmpfs tmpfs "$folder"
    done
    mkdir -p "$work/kernel" /run/containerd
    for each in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        echo "${each#*=}" >"$work/kernel/$(basename "${each%=*}")"
        mount --bind "$work/kernel/$(basename "${each%=*}")" "/proc/sys/${each%=*}"
    done
    for each in /sys/fs/cgroup/*/; do # version 1: a tree for each controller
        [[ ! -e $each/cgroup.procs || -e /sys/fs/cgroup/cgroup.controllers ]] || mkdir -p "$each$group"
    done
    [[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || mkdir -p "/sys/fs/cgroup$group"
}

# What holds a pod's namespaces: a program that waits.
make_pause_image() {
    local container
    echo 'int pause(void); int main(void) { for (;;) pause(); }' >"$work/pause.c"
    cc -static -o "$work/pause" "$work/pause.c"
    export STORAGE_DRIVER=vfs
    buildah=(buildah --root "$work/buildah" --runroot "$work/buildah-run")
    container=$("${buildah[@]}" from scratch)
    "${buildah[@]}" copy --quiet "$container" "$work/pause" /pause >>"$log"
    "${buildah[@]}" config --entrypoint '["/pause"]' "$container"
    "${buildah[@]}" commit --quiet --format docker "$container" "docker-archive:$work/pause.tar:localhost/pause:1" \
        >>"$log" 2>&1
}

configure_containerd() {
    mkdir -p "$work/cni"
    cat >"$work/cni/pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam":
  {"type": "host-local", "subnet": "$pod_addresses", "dataDir": "$work/addresses", "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
    cat >"$work/containerd.toml" <<TOML
version = 2
root = "$work/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$programs/debian/usr/lib/cni"
conf_dir = "$work/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
TOML
}

configure_kubelet() {
    : >"$work/resolv.conf"
    mkdir -p "$work/pods"
    cat >"$work/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: $group
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: $work/resolv.conf
podLogsDir: $work/pods
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
YAML
}

import_images() {
    local version
    version=$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' "$chart/Chart.yaml")
    ctr --namespace k8s.io images import "$work/pause.tar" >>"$log" 2>&1
    mkdir "$work/image" # its name without a host would be a registry's to containerd
    tar --extract --directory "$work/image" --file "$work/remora-$version-image.tar"
    sed -i "s|\"remora:$version\"|\"localhost/remora:$version\"|" "$work/image/index.json"
    tar --create --directory "$work/image" --file "$work/remora.tar" blobs index.json oci-layout
    ctr --namespace k8s.io images import "$work/remora.tar" >>"$log" 2>&1
    rm -rf "$work/image" "$work/remora.tar"
}

# --- the chart ---------------------------------------------------------------------------------------

make_volume() {
    mkdir -m 755 "$work/volume" # root's, as a fresh volume is
    kubectl apply --filename - >>"$log" <<YAML
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast},
  provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: queues}
spec:
  capacity: {storage: 20Gi}
  accessModes: [ReadWriteOncePod]
  storageClassName: fast
  local: {path: $work/volume}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/hostname, operator: In, values: [node]}]}]}}
YAML
}

make_secrets() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=remora \
        -addext subjectAltName=DNS:remora -keyout "$work/tls.key" -out "$work/tls.crt" >>"$log" 2>&1
    "$send" token gateway --append "$work/tokens" >"$work/token"
    kubectl create secret tls remora-ingest-tls --cert "$work/tls.crt" --key "$work/tls.key" >>"$log"
    kubectl create secret generic remora-ingest-tokens --from-file="$work/tokens" >>"$log"
}

install() {
    "$helm" upgrade --install remora "$chart" --namespace remora --values "$example/sqlite.yaml" \
        --set image.repository=localhost/remora --set image.pullPolicy=Never "$@"
}
is_ready() {
    kubectl wait --for condition=Ready pod/remora-0 --timeout 120s || {
        kubectl describe pod remora-0
        kubectl logs remora-0 --container remora --tail 5
        return 1
    }
}
started_once() { [[ $(kubectl get pod remora-0 --output 'jsonpath={.status.containerStatuses[0].restartCount}') == 0 ]]; }
remora() { kubectl exec remora-0 --container remora -- remora "$@"; }

# FIRST LAST: events with these numbers as keys, by the name that the certificate has.
send_events() {
    local address
    address=$(kubectl get pod remora-0 --output 'jsonpath={.status.podIP}')
    printf '127.0.0.1 localhost\n%s remora\n' "$address" >"$work/hosts"
    mountpoint --quiet /etc/hosts || mount --bind "$work/hosts" /etc/hosts
    seq -f 'key-%05.0f' "$1" "$2" | tee -a "$work/sent" |
        sed 's|.*|{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"bucket"},"object":{"key":"&"}}}|' |
        "$send" send --to=https://remora:9751 --token-file "$work/token" --ca-file "$work/tls.crt" events
}
all_there() {
    remora topic dump events >"$work/dump"
    "$python" -c '
import json, sys
for line in sys.stdin:
    for record in json.loads(line)["notification"]["Records"]:
        print(record["s3"]["object"]["key"])' <"$work/dump" | sort >"$work/found"
    sort "$work/sent" | diff - "$work/found" && remora ledger events
}
users_alone() { # the folder, and the databases in it
    local folder=$work/volume/queues
    ls -ld "$folder"
    test -n "$(find "$folder" -name '*.db' -user 10001)" &&
        test -z "$(find "$folder" \( -path "$folder" -o -name '*.db' \) -perm /077)"
}
a_new_pod_is_whole() { # AFTER WHAT
    holds "$1 the pod gets ready" is_ready
    holds "with its first start" started_once
    holds "and all $(wc -l <"$work/sent") events are there" all_there
    holds "in a folder that is its user's alone" users_alone
}
delete_pod() { kubectl delete pod remora-0 --timeout 90s && kubectl wait --for create pod/remora-0 --timeout 60s; }

changes_always() {
    install --set podSecurityContext.fsGroupChangePolicy=Always &&
        kubectl rollout status statefulset/remora --timeout 180s &&
        [[ $(kubectl get pod remora-0 --output 'jsonpath={.spec.securityContext.fsGroupChangePolicy}') == Always ]]
}

runs_the_chart() {
    make_volume
    make_secrets
    : >"$work/sent"
    holds "Helm installs the chart" install
    holds "kubelet gives the volume to the pod's group, and the pod gets ready" is_ready
    holds "with its first start" started_once
    holds "a topic is made in it" remora topic create events --endpoint "kafka://$node_address:9092"
    holds "it takes 500 events over HTTPS with a token" send_events 1 500
    holds "and they are there" all_there
    holds "the pod is deleted" delete_pod
    a_new_pod_is_whole "after that"
    holds "it takes 500 more" send_events 501 1000
    holds "the pod is deleted once more" delete_pod
    a_new_pod_is_whole "after that"
    holds "it is replaced by one with fsGroupChangePolicy: Always" changes_always
    a_new_pod_is_whole "although kubelet opened the folder to the group,"
    holds "it still takes events" send_events 1001 1100
    holds "and all 1100 are there" all_there
}

# Sourced by scripts/try-kubernetes, in namespaces of its own: etcd and an API server, and what the server takes.
# shellcheck shell=bash disable=SC2154

# Addresses of documentation: the network has this node and its pods, and no way out.
node_address=192.0.2.1
service_addresses=203.0.113.0/24

start_server() {
    local token
    token=$(openssl rand -hex 16)
    ip link set lo up
    ip link add node0 type veth peer name node1
    ip address add "$node_address/24" dev node0
    ip link set node0 up
    ip link set node1 up
    echo "$token,admin,admin,system:masters" >"$work/tokens.csv"
    openssl genrsa -out "$work/accounts.key" 2048 2>>"$log"
    cat >"$KUBECONFIG" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: here, context: {cluster: here, user: admin, namespace: remora}}]
current-context: here
YAML
    started etcd etcd --data-dir "$work/etcd" --listen-peer-urls http://127.0.0.1:2380
    started kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir="$work/certificates" \
        --bind-address=127.0.0.1 --advertise-address="$node_address" --service-cluster-ip-range="$service_addresses" \
        --service-account-issuer=https://kubernetes.default --service-account-key-file="$work/accounts.key" \
        --service-account-signing-key-file="$work/accounts.key" --token-auth-file="$work/tokens.csv" \
        --authorization-mode=RBAC --allow-privileged --kubelet-preferred-address-types=InternalIP
    until_true 90 "the API server" kubectl get --raw /readyz
    version=$(kubectl get --raw /version | sed -n 's/.*"gitVersion": "v\(.*\)".*/\1/p')
    kubectl apply --server-side --filename "$programs/crds" >>"$log"
    kubectl wait --for condition=Established --all crd --timeout 60s >>"$log"
    a_namespace remora
    a_namespace events # of deploy/kustomize/example
}

a_namespace() { # NAME
    {
        kubectl create namespace "$1"
        kubectl label namespace "$1" pod-security.kubernetes.io/{enforce,warn}=restricted
        kubectl create serviceaccount default --namespace "$1" # no controller makes it yet
    } >>"$log"
}

takes() { kubectl apply --dry-run=server --validate=strict --warnings-as-errors --filename -; }
templates() { "$helm" template remora "$chart" --namespace remora --kube-version "$version" "$@" 2>>"$log"; }
takes_chart() { templates "$@" | takes; }
takes_folder() { kubectl kustomize "$1" | takes; }
refuses() { # SED-SCRIPT WORDS: what the chart gives, changed so, is refused with these words
    templates | sed "$1" >"$work/wrong.yaml"
    if takes <"$work/wrong.yaml" >"$work/refusal" 2>&1; then
        return 1
    fi
    grep -F "$2" "$work/refusal"
}

takes_all() {
    local each
    holds "Kubernetes $version takes what the chart gives" takes_chart
    for each in "$example"/*.yaml; do
        holds "and with $(basename "$each")" takes_chart --values "$each"
    done
    for each in sqlite rados example; do
        holds "and what deploy/kustomize/$each gives" takes_folder "$repo/deploy/kustomize/$each"
    done
    holds "it refuses the chart's pod with a field that it does not know" refuses \
        's/terminationGracePeriodSeconds:/gracePeriod:/' 'unknown field "spec.template.spec.gracePeriod"'
    holds "and warns of one that may be root's" refuses \
        's/runAsNonRoot: true/runAsNonRoot: false/' 'would violate PodSecurity "restricted'
}

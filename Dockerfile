# lossbench in a container: docker build -t lossbench . ; then, with what network namespaces and eBPF need:
#   docker run --rm --cap-add NET_ADMIN --cap-add SYS_ADMIN --security-opt apparmor=unconfined lossbench run proof
#   docker run --rm --privileged lossbench run quickstart              # everything, eBPF included
# Rootless engines (podman, rootless docker) need no capability for `run`: a user namespace is enough for cbpf and netem:
#   podman run --rm --security-opt unmask=ALL --device /dev/net/tun lossbench run proof
# It works as process 1, with or without --init. Your own files: -v "$PWD:/work".
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir '/src[report]' && rm -rf /src
WORKDIR /work
ENTRYPOINT ["lossbench"]
CMD ["doctor"]

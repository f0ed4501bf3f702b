# lossbench in a container: docker build -t lossbench . ; then, with what network namespaces and eBPF need:
#   docker run --rm -v "$PWD:/work" --cap-add NET_ADMIN --cap-add SYS_ADMIN --security-opt apparmor=unconfined lossbench run proof
#   docker run --rm -v "$PWD:/work" --privileged lossbench run quickstart              # everything, eBPF included
# Rootless engines (podman, rootless docker) need no capability for `run`: a user namespace is enough for cbpf and netem:
#   podman run --rm -v "$PWD:/work" --security-opt unmask=ALL --device /dev/net/tun lossbench run proof
# Your files are read from /work, and results are left there. It works as process 1, with or without --init.
# Without torch's CUDA packages: docker build --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu -t lossbench .
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir '/src[report]' && rm -rf /src
WORKDIR /work
ENTRYPOINT ["lossbench"]
CMD ["doctor"]

# The image of one Debian release, because python3-rados must fit both the cluster and the Python:
#   bookworm  librados 16.2, Python 3.11
#   trixie    librados 18.2, Python 3.13
#   forky     librados 20.2, Python 3.14: the one that understands the aes256k keys of new Tentacle clusters
#
#   docker build --build-arg DEBIAN_RELEASE=forky -t remora .
#   docker run -v /etc/ceph:/etc/ceph:ro -v ./remora.toml:/etc/remora/remora.toml:ro remora
ARG DEBIAN_RELEASE=bookworm

FROM debian:${DEBIAN_RELEASE}-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
# pip stays behind in a virtual environment of its own. The one that is copied sees the system's packages,
# because the rados binding comes from Debian and exists nowhere else.
RUN python3 -m venv /opt/pip \
    && python3 -m venv --without-pip --system-site-packages /opt/remora
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY daemon daemon
RUN /opt/pip/bin/pip --python /opt/remora/bin/python install --no-cache-dir .

FROM debian:${DEBIAN_RELEASE}-slim
LABEL org.opencontainers.image.title="remora" \
      org.opencontainers.image.description="Delivers persistent bucket notifications from object-store gateways to Kafka" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates librados2 python3 python3-rados \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/remora /opt/remora
COPY config/remora.toml /etc/remora/remora.toml
ENV PATH=/opt/remora/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that an orchestrator can see that it is not root. It owns nothing: the file system may be read-only.
USER 10001:10001
EXPOSE 9750
STOPSIGNAL SIGTERM
# Asks the port of admin.listen's default; a daemon that listens elsewhere needs another --health-cmd.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/remora/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9750/-/live', timeout=4)"]
ENTRYPOINT ["/opt/remora/bin/remora"]
CMD ["run", "-c", "/etc/remora/remora.toml"]

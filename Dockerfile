# The image of one Debian release, because librados must fit the cluster:
#   bookworm  librados 16.2, Python 3.11
#   trixie    librados 18.2, Python 3.13
#   forky     librados 20.2, Python 3.14: the one that understands the aes256k keys of new Tentacle clusters
# The embedded store needs no librados at all; --build-arg CEPH_PACKAGES= leaves it out. Likewise KERBEROS_PACKAGES=, where
# no topic logs in to Kafka with Kerberos.
#
#   docker build --build-arg DEBIAN_RELEASE=forky -t remora .
#   docker build --target pipeline --build-context spark-jars="$(scripts/dev/spark-jars)" -t remora-pipeline .
#   docker run -p 127.0.0.1:9750:9750 -v remora:/var/lib/remora -v remora-sockets:/run/remora remora
#   docker run -p 127.0.0.1:9750:9750 -v /etc/ceph:/etc/ceph:ro -v ./remora.toml:/etc/remora/remora.toml:ro remora
ARG DEBIAN_RELEASE=bookworm
ARG CEPH_PACKAGES=librados2
ARG KERBEROS_PACKAGES=python3-gssapi

FROM debian:${DEBIAN_RELEASE}-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
# pip stays behind in a virtual environment of its own.
RUN python3 -m venv /opt/pip \
    && python3 -m venv --without-pip /opt/remora
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE CHANGELOG.md deploy/constraints.txt deploy/build-constraints.txt ./
COPY config config
COPY systemd systemd
COPY daemon daemon
# With a time given, compiled files of Python name what they were compiled from by hash: an image whose times are set to
# one of a release still has them valid. Without -g0 the codec would name folders of the build.
# The packages have the versions of the constraints, as those in the Debian package have, and their files the digests there.
RUN /opt/pip/bin/pip install --no-cache-dir pip==26.1 \
    && export SOURCE_DATE_EPOCH=315532800 CFLAGS=-g0 PIP_BUILD_CONSTRAINT=/src/build-constraints.txt PIP_NO_CACHE_DIR=1 \
    && /opt/pip/bin/pip wheel --no-deps --wheel-dir /wheel . \
    && /opt/pip/bin/pip --python /opt/remora/bin/python install --no-deps --require-hashes --requirement constraints.txt \
    && /opt/pip/bin/pip --python /opt/remora/bin/python install --no-deps --no-index /wheel/*.whl \
    && /opt/pip/bin/pip --python /opt/remora/bin/python check

FROM debian:${DEBIAN_RELEASE}-slim AS daemon
LABEL org.opencontainers.image.title="remorad" \
      org.opencontainers.image.description="Delivers persistent bucket notifications from object-store gateways to Kafka, HTTP, AMQP or NATS" \
      org.opencontainers.image.licenses="Apache-2.0"
ARG CEPH_PACKAGES
ARG KERBEROS_PACKAGES
RUN apt-get update \
    && SOURCE_DATE_EPOCH=315532800 apt-get install -y --no-install-recommends ca-certificates python3 ${CEPH_PACKAGES} ${KERBEROS_PACKAGES} \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/remora /opt/remora
# Debian's own build of gssapi; where it was left out, the links lead nowhere.
RUN ln -s /usr/lib/python3/dist-packages/gssapi /usr/lib/python3/dist-packages/decorator.py \
    /opt/remora/lib/python3.*/site-packages/
COPY --from=build /src/config/remora.toml /etc/remora/remora.toml
ENV PATH=/opt/remora/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Metrics, health and the status page: with the default, this container's own loopback, no published port would reach them.
# They only show; what changes the daemon goes over the control socket. It stands over the file, as each variable does.
ENV REMORA_ADMIN_LISTEN=0.0.0.0:9750
# A number, so that an orchestrator can see that it is not root. It owns nothing but the folders of the queues and of the
# sockets: with volumes for these the file system may be read-only. Group 0 may use both, for OpenShift, which runs a
# container as another user of that group. The queues lie a folder deeper than the volume, which may have to stay root's.
RUN install -d -m 0770 -o 10001 -g 0 /var/lib/remora \
    && install -d -m 0775 -o 10001 -g 0 /run/remora \
    && sed -i 's|^#directory = "/var/lib/remora"$|directory = "/var/lib/remora/queues"|' /etc/remora/remora.toml \
    && grep -qxF 'directory = "/var/lib/remora/queues"' /etc/remora/remora.toml
VOLUME /var/lib/remora
USER 10001:10001
EXPOSE 9750
STOPSIGNAL SIGTERM
# Asks the port of REMORA_ADMIN_LISTEN above; a daemon that listens elsewhere needs another --health-cmd.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/remora/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9750/-/live', timeout=4)"]
ENTRYPOINT ["/opt/remora/bin/remora"]
CMD ["run", "-c", "/etc/remora/remora.toml"]

# `remora replay` and `remora pipeline`: their packages, a Java, and Spark's Kafka connector, which no container fetches.
FROM build AS pipeline-build
COPY deploy/pipeline-constraints.txt ./
COPY pipeline pipeline
RUN export SOURCE_DATE_EPOCH=315532800 PIP_BUILD_CONSTRAINT=/src/build-constraints.txt PIP_NO_CACHE_DIR=1 \
    && /opt/pip/bin/pip wheel --no-deps --wheel-dir /pipeline-wheel ./pipeline \
    && /opt/pip/bin/pip --python /opt/remora/bin/python install --no-deps --require-hashes \
        --requirement pipeline-constraints.txt \
    && /opt/pip/bin/pip --python /opt/remora/bin/python install --no-deps --no-index /pipeline-wheel/*.whl \
    && /opt/pip/bin/pip --python /opt/remora/bin/python check

FROM debian:${DEBIAN_RELEASE}-slim AS pipeline
LABEL org.opencontainers.image.title="remorad-pipeline" \
      org.opencontainers.image.description="Lands bucket notifications in tables and reconciles them with what buckets hold, by Spark" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && SOURCE_DATE_EPOCH=315532800 apt-get install -y --no-install-recommends ca-certificates default-jre-headless procps python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=pipeline-build /opt/remora /opt/remora
COPY --from=spark-jars . /opt/remora/spark-kafka/
# Hadoop, which Spark stands on, wants a name for the user.
RUN useradd --uid 10001 --user-group --home-dir /tmp --shell /usr/sbin/nologin remora
# All that a job writes beside its tables lies below /tmp: with a volume there the file system may be read-only.
ENV PATH=/opt/remora/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    REMORA_SPARK_JARS=/opt/remora/spark-kafka
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/remora/bin/remora"]
CMD ["pipeline", "--help"]

# What a build without --target gives.
FROM daemon

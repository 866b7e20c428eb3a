# trtb with the embedded engine and server, for x86-64 CPUs.
#
#   docker build --file docker/cpu.Dockerfile --tag trtb:cpu .
#
# Nothing is installed but Python packages: the server and the engine need the C and C++ libraries alone, and
# this image's Python has the shared library that Triton's python backend is linked against.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG PYTHON_DIGEST=

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS image
ARG PYTHON_IMAGE
ARG PYTHON_DIGEST
SHELL ["/bin/sh", "-eu", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN if [ -z "${PYTHON_DIGEST}" ]; then \
        echo "warning: ${PYTHON_IMAGE} is not pinned by a digest; README, Containers, says how" >&2; \
    fi

FROM image AS builder
RUN python3 -m venv /opt/trtb
# first what changes seldom; a private index: docker build --secret id=pip,src=PIP_CONF
COPY pyproject.toml constraints.txt /src/
COPY docker/list_requirements.py /src/docker/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/trtb/bin/python /src/docker/list_requirements.py /src/pyproject.toml > /src/requirements.txt; \
    /opt/trtb/bin/pip install --no-cache-dir --constraint /src/constraints.txt --requirement /src/requirements.txt
COPY README.md LICENSE /src/
COPY build /src/build
COPY model_repo /src/model_repo
COPY runner /src/runner
COPY tools /src/tools
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/trtb/bin/pip install --no-cache-dir --no-deps /src; \
    /opt/trtb/bin/pip check

FROM image
ARG PYTHON_IMAGE
ARG PYTHON_DIGEST
ARG TRTB_VERSION=0.1.0
ARG TRTB_REVISION=
ARG TRTB_UID=1000
ARG TRTB_GID=1000
LABEL org.opencontainers.image.title="trtb" \
      org.opencontainers.image.description="Offline batch inference with large language models, on CPUs" \
      org.opencontainers.image.version="${TRTB_VERSION}" \
      org.opencontainers.image.revision="${TRTB_REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.base.digest="${PYTHON_DIGEST}"
COPY --from=builder /opt/trtb /opt/trtb
COPY docker/healthcheck.py /opt/trtb/healthcheck.py
RUN groupadd --non-unique --gid "${TRTB_GID}" trtb; \
    useradd --non-unique --no-log-init --uid "${TRTB_UID}" --gid "${TRTB_GID}" --no-create-home \
        --home-dir /tmp --shell /usr/sbin/nologin trtb; \
    install --directory --owner="${TRTB_UID}" --group="${TRTB_GID}" /data; \
    ln -s /opt/trtb/bin/trtb /usr/local/bin/trtb
# USER is asked for by libraries whose user has no name, as with docker run --user
ENV TRTB_HOME=/data \
    HOME=/tmp \
    USER=trtb
USER ${TRTB_UID}:${TRTB_GID}
VOLUME /data
WORKDIR /data
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=70s --start-period=5m --retries=3 \
    CMD ["/opt/trtb/bin/python", "-I", "/opt/trtb/healthcheck.py"]
ENTRYPOINT ["trtb"]
CMD ["--help"]

# The images of Stagelens.
#
#   docker build -t stagelens .                                              collector, dashboard, alerts: stagelens up|collector|…
#   docker build -t stagelens-instrumentation --target instrumentation .     agent, for an init container of a workload
#
# For reproducible images, pin the base images by digest:
#   --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:…  --build-arg BUSYBOX_IMAGE=busybox:1.37@sha256:…
# See docs/kubernetes.md. tests/helm/test_image.py runs each RUN step of `wheel` and `autoinstrumentation`.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG BUSYBOX_IMAGE=busybox:1.37

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# --- Packages for workloads, in the layout of the OpenTelemetry Operator. The operator copies /autoinstrumentation (on Alpine
# --- /autoinstrumentation-musl) and adds it to PYTHONPATH. Both are equal, because the packages are pure Python.
FROM ${PYTHON_IMAGE} AS autoinstrumentation
COPY docker/constraints.txt docker/sitecustomize.py /src/
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-compile --constraint /src/constraints.txt --target /autoinstrumentation /wheels/*.whl \
    && install -D -m 0644 /src/sitecustomize.py /autoinstrumentation/opentelemetry/instrumentation/auto_instrumentation/sitecustomize.py

FROM ${BUSYBOX_IMAGE} AS instrumentation
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="stagelens-instrumentation" \
      org.opencontainers.image.description="Times the requests of a Python workload; an init container copies it there." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=autoinstrumentation /autoinstrumentation /autoinstrumentation
RUN chmod -R go+rX /autoinstrumentation && ln -s autoinstrumentation /autoinstrumentation-musl
USER 10001:10001

# --- The server.
FROM ${PYTHON_IMAGE} AS packages
COPY docker/constraints.txt /src/
COPY --from=wheel /wheels /wheels
RUN python -m venv --without-pip /opt/stagelens \
    && pip --python /opt/stagelens/bin/python install --no-cache-dir --constraint /src/constraints.txt \
       "$(ls /wheels/stagelens-*.whl)[server,postgres,clickhouse]" \
    && find /opt/stagelens/lib/python3*/site-packages/numpy /opt/stagelens/lib/python3*/site-packages/pandas \
       -type d -name tests -prune -exec rm -r {} + \
    && find /opt/stagelens/lib/python3*/site-packages/dash /opt/stagelens/lib/python3*/site-packages/plotly \
       -type f \( -name '*.js' -o -name '*.map' \) -delete
# Bill of materials: docker run --rm --entrypoint cat stagelens /opt/stagelens/sbom.cdx.json
ARG CYCLONEDX_VERSION=7.5.0
RUN python -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --no-cache-dir "cyclonedx-bom==${CYCLONEDX_VERSION}" \
    && /opt/sbom/bin/cyclonedx-py environment --output-format JSON --output-file /opt/stagelens/sbom.cdx.json /opt/stagelens/bin/python

FROM ${PYTHON_IMAGE} AS server
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="stagelens" \
      org.opencontainers.image.description="Where the time of inference requests goes, and why p99 is not p50." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# /data belongs to the group root: OpenShift assigns an arbitrary user, but always this group.
RUN groupadd --gid 10001 stagelens \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin stagelens \
    && install -d -o 10001 -g 0 -m 0770 /data
COPY --from=packages /opt/stagelens /opt/stagelens
COPY docker/healthcheck.py /opt/stagelens/healthcheck.py
ENV PATH="/opt/stagelens/bin:${PATH}" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STAGELENS_DATABASE=sqlite:////data/stagelens.db \
    STAGELENS_COLLECTOR_HOST=0.0.0.0 \
    STAGELENS_DASHBOARD_HOST=0.0.0.0 \
    STAGELENS_ALERTS_METRICS_HOST=0.0.0.0 \
    STAGELENS_ALERTS_METRICS_PORT=9464
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 4317 4318 8600 9464
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "/opt/stagelens/healthcheck.py"]
ENTRYPOINT ["stagelens"]
CMD ["up"]

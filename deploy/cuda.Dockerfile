# Spangate on NVIDIA GPUs, from an unpacked release: `docker build -f deploy/cuda.Dockerfile -t spangate:cuda .` in its
# folder. The host has the driver and the container toolkit: `docker run --gpus all …`.
# The base has what the kernels are compiled and multiplied with at the first start, NVRTC and cuBLASLt.
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04

COPY bin /opt/spangate/bin
COPY node_modules /opt/spangate/node_modules

# The number lets a volume be given to this user from outside. All that is written lies in its folder.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/spangate --shell /usr/sbin/nologin spangate \
    && install --directory --owner=spangate --group=spangate --mode=0700 /var/lib/spangate

ENV PATH=/opt/spangate/bin:$PATH \
    SPANGATE_HOST=0.0.0.0 \
    SPANGATE_DEVICES=cuda:0 \
    SPANGATE_DATA=/var/lib/spangate/data \
    XDG_CACHE_HOME=/var/lib/spangate/cache

USER 10001:10001
WORKDIR /var/lib/spangate
VOLUME ["/var/lib/spangate"]
EXPOSE 8080
STOPSIGNAL SIGTERM

# Asks the server whether it can answer, as /ready does.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=4 CMD ["spangate", "status"]

ENTRYPOINT ["spangate"]
CMD ["serve"]

# trainmark in a container, on any image that has Python 3.10 or newer:
#   docker build -t trainmark .
#   docker build -t trainmark --build-arg BASE=VENDOR/IMAGE:TAG .
# A torch that the image brings stays as it is; without one, the versions trainmark is tested with are installed.
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# address of further wheels, such as torch for a CPU alone, which is far smaller
ARG EXTRA_INDEX=""
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheel /tmp/wheel
# pinned to what is there: pip ends in an error rather than replace a vendor's torch by one that does not know the device
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_EXTRA_INDEX_URL="${EXTRA_INDEX}" \
    && { python3 -m pip list --format=freeze | grep -iE '^(torch|triton|numpy)' > /tmp/kept.txt \
        || cp /tmp/constraints.txt /tmp/kept.txt; } \
    && python3 -m pip install --no-cache-dir --constraint /tmp/kept.txt /tmp/wheel/*.whl \
    && rm -rf /tmp/wheel /tmp/kept.txt /tmp/constraints.txt

# records and synthetic data lie where a volume can be mounted; nothing here needs root
RUN useradd --create-home --uid 10001 trainmark \
    && mkdir /results /cache \
    && chown trainmark: /results /cache
ENV TRAINMARK_STORE=/results TRAINMARK_CACHE=/cache
USER 10001
WORKDIR /home/trainmark
ENTRYPOINT ["trainmark"]
CMD ["run"]

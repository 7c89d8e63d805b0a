# One image for every role: gateway, engine, worker. The role is the command.
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /app
COPY requirements requirements
# TORCH_INDEX picks torch's build, such as: --build-arg TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
ARG TORCH_INDEX=""
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/base.txt \
 && /venv/bin/pip install --no-cache-dir ${TORCH_INDEX} -r requirements/torch.txt
COPY . .
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation -e . \
 && /venv/bin/python scripts/build_console.py \
 && rm -rf .console web/node_modules

FROM python:3.11.13-slim-bookworm
RUN useradd --create-home --uid 10001 turnpike && install -d -o turnpike -g turnpike -m 0700 /data /exports /files
COPY --from=build /venv /venv
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/venv/bin:$PATH TURNPIKE_DATA_DIR=/data TURNPIKE_LOG_FORMAT=json
USER turnpike
VOLUME /data
EXPOSE 8080
# Of serve and gateway, on the port that serve has. An engine is asked by `turnpike engine --health --listen ADDRESS`, a
# worker by `turnpike worker --health`, as docker-compose.yml does.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["turnpike"]
CMD ["serve", "--host", "0.0.0.0"]

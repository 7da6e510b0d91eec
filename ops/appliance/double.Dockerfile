# The double of PostgREST, for a machine that cannot pull its image. Only ops/appliance-test uses it.
FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv /opt/double && /opt/double/bin/pip install 'psycopg[binary]>=3.2.4'

FROM python:3.13-slim
COPY --from=build /opt/double /opt/double
COPY tests/double /srv/tests/double
ENV PATH=/opt/double/bin:$PATH PYTHONPATH=/srv PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000
CMD ["python", "-m", "tests.double", "/etc/postgrest.conf"]

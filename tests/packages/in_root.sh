#!/usr/bin/env bash
# Inside a bare root: install, first answer, remove, nothing left.   in_root.sh deb|wheel PORT
set -euo pipefail
port=$2
server=

expect() {
  "$@" || { echo "NOT SO: $*"; exit 1; }
}

stop_server() {
  [ -z "$server" ] || kill -TERM "$server" 2> /dev/null || true
}
trap stop_server EXIT

# One HTTP request by bash alone: a bare root has no curl. The connection closes with the answer.
ask() {
  local method=$1 path=$2 body=${3:-}
  exec 3<> "/dev/tcp/127.0.0.1/$port"
  printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "$method" "$path" "${#body}" "$body" >&3
  cat <&3
  exec 3>&-
}

wait_until_healthy() {
  local i
  for i in $(seq 600); do
    kill -0 "$server" || { echo "the server has ended"; exit 1; }
    if ask GET /health 2> /dev/null | grep -q '"status"'; then return; fi
    sleep 0.2
  done
  echo "the server is not up after two minutes"
  exit 1
}

end_server() {
  kill -TERM "$server"
  wait "$server" || { echo "the server ended with status $?"; exit 1; }
  server=
}

# As the unit does it: its user, its configuration, its command line.
start_service() {
  local command
  command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/droidspeak.service | sed 's/\$\([A-Z_]*\)$/${\1}/')
  install -d -o droidspeak -g droidspeak /run/droidspeak
  setpriv --reuid=droidspeak --regid=droidspeak --clear-groups bash -c ". /etc/droidspeak/droidspeak.conf; exec $command" &
  server=$!
  wait_until_healthy
}

try_deb() {
  local before after answer
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # Once for what it depends on, which stays: all that is new the second time is its own.
  apt-get install -y -qq --no-install-recommends /srv/packages/*.deb > /dev/null
  dpkg --purge droidspeak
  before=$(list_files)
  dpkg -i /srv/packages/*.deb
  expect test "$(droidspeak --version | head -1)" = "droidspeak $(dpkg-deb -f /srv/packages/*.deb Version)"
  expect getent passwd droidspeak
  expect test "$(stat -c '%U %a' /var/cache/droidspeak)" = "droidspeak 700"
  expect test -s /usr/share/man/man1/droidspeak.1.gz -o -e /etc/dpkg/dpkg.cfg.d/excludes
  expect bash -c '. /usr/share/bash-completion/completions/droidspeak; COMP_WORDS=(droidspeak ser); COMP_CWORD=1; _droidspeak; [ "${COMPREPLY[*]}" = serve ]'
  sed -i "s|^DROIDSPEAK_FAMILY=.*|DROIDSPEAK_FAMILY=/srv/droidspeak/models/smollm2/family.json|; s|--port 8080|--port $port|" /etc/droidspeak/droidspeak.conf
  start_service
  answer=$(ask POST /v1/chat/completions '{"model": "base", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16, "temperature": 0}')
  echo "$answer" | grep -q '"finish_reason"' || { echo "no answer: $answer"; exit 1; }
  echo "deb: $(echo "$answer" | grep -o '"content":"[^"]*"')"
  expect test -S /run/droidspeak/socket
  end_server
  expect test ! -e /run/droidspeak/socket
  rmdir /run/droidspeak
  dpkg --remove droidspeak
  expect test ! -e /usr/bin/droidspeak
  expect test -e /etc/droidspeak/droidspeak.conf
  dpkg --purge droidspeak
  expect test -z "$(getent passwd droidspeak)"
  after=$(list_files)
  expect diff <(echo "$before") <(echo "$after")
  echo "deb: removed without a trace"
}

# All files of the system but those that dpkg and the system's own tools keep about packages and users.
list_files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /srv -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache/apt \
    -o -path /var/lib/apt -o -path /var/cache/ldconfig -o -path /var/cache/debconf \) -prune -o -print | grep -vE '^/etc/(passwd|group|shadow|gshadow|subuid|subgid|\.pwd\.lock)-?$' | sort
}

try_wheel() {
  local program
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends python3 python3-venv > /dev/null
  python3 -m venv /srv/venv
  find /srv/venv -type f ! -name '*.pyc' | sort > /srv/before
  /srv/venv/bin/pip install -q --no-index --no-deps /srv/packages/*.whl
  program=/srv/venv/bin/droidspeak
  expect "$program" --version
  "$program" serve --family /srv/droidspeak/models/smollm2/family.json --host 127.0.0.1 --port "$port" &
  server=$!
  wait_until_healthy
  echo "wheel: $(/srv/venv/bin/python /srv/packages/first_answer.py "http://127.0.0.1:$port")"
  end_server
  /srv/venv/bin/pip uninstall -q -y droidspeak
  expect diff /srv/before <(find /srv/venv -type f ! -name '*.pyc' | sort)
  echo "wheel: removed without a trace"
}

case "$1" in
  deb) try_deb ;;
  wheel) try_wheel ;;
esac

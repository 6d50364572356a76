#!/usr/bin/env bash
# Starts Debian's Docker engine where no init does, waits until it responds, and stores its process id:
#   sudo scripts/start-dockerd.sh          starts it, or reports that one is already running
#   sudo scripts/start-dockerd.sh stop     ends the one that this script started
set -euo pipefail

state="${OSWORLD_DOCKERD_STATE:-/run/osworld-gym-dockerd}"
socket=/var/run/docker.sock
seconds=60

answers() { curl --silent --max-time 5 --unix-socket "$socket" http://docker/_ping 2>/dev/null | grep --quiet OK; }

stop() {
  test -f "$state/pid" || { echo "no engine was started by this script"; return 0; }
  pid=$(cat "$state/pid")
  if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
    kill "$pid"
    timeout "$seconds" tail --pid="$pid" --follow /dev/null
  fi
  rm -f "$state/pid"
  echo "the engine with process id $pid has ended"
}

start() {
  if answers; then echo "an engine is already running at $socket"; return 0; fi
  for program in dockerd curl; do
    command -v "$program" >/dev/null || { echo "no $program; fix: apt-get update && apt-get install -y docker.io curl" >&2; return 1; }
  done
  mkdir -p "$state"
  : >"$state/log"
  setsid --fork sh -c 'echo $$ >"$0/pid"; exec dockerd --pidfile "$0/dockerd.pid" >>"$0/log" 2>&1 </dev/null' "$state"
  # the engine responds once its log says so
  exec 3< <(exec tail --lines=+1 --follow "$state/log")
  tail=$!
  ready=0
  timeout "$seconds" grep --quiet --max-count=1 "API listen on\|failed to start daemon" <&3 && answers || ready=$?
  kill "$tail"
  if [ "$ready" != 0 ]; then
    echo "the engine did not start; the end of $state/log:" >&2
    tail --lines=5 "$state/log" >&2
    return 1
  fi
  echo "started with process id $(cat "$state/pid"), log $state/log"
}

case "${1:-start}" in
  start) start ;;
  stop) stop ;;
  *) echo "expected start or stop, got $1" >&2; exit 2 ;;
esac

# Fresh Debian 12 and Ubuntu 24.04 roots by debootstrap; sourced by tools/test_bare and tests/packages/run, which set `logs`.
#   DEBIAN_MIRROR=URL UBUNTU_MIRROR=URL   else the one that apt uses here, else debootstrap's own
# How this machine reaches its mirrors (apt's proxy settings, pip's settings, certificates) holds in the roots too.

# Where this machine's apt gets a suite from, or nothing.
mirror_of_host() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 2> /dev/null | awk -v suite="$1" '$1 == suite { print $2; exit }' |
    sed 's|/$||'
}

# Debian 12 has no package of Ubuntu's keys: they come from Ubuntu's archive and must be those of this digest.
keyring_package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
keyring_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
get_ubuntu_keys() {
  local mirror=$1 target=$2 package
  package=$(mktemp)
  [ -n "$mirror" ] || mirror=$(awk '$1 == "default_mirror" && $2 !~ /old|ports/ { print $2; exit }' /usr/share/debootstrap/scripts/gutsy)
  curl -sS --fail --max-time 60 -o "$package" "$mirror/$keyring_package" &&
    echo "$keyring_sha256 $package" | sha256sum --check --quiet &&
    dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/share/keyrings/ubuntu-archive-keyring.gpg > "$target"
}

# make_root NAME ROOT: without a mirror debootstrap takes its own.
make_root() {
  local mirror keys=/usr/share/keyrings/$1-archive-keyring.gpg
  if [ "$1" = debian ]; then
    mirror=${DEBIAN_MIRROR:-$(mirror_of_host bookworm)}
    debootstrap --variant=minbase --keyring="$keys" --include=ca-certificates bookworm "$2" "$mirror"
    return
  fi
  mirror=${UBUNTU_MIRROR:-$(mirror_of_host noble)}
  if [ ! -f "$keys" ]; then
    keys=$logs/ubuntu-archive-keyring.gpg
    get_ubuntu_keys "$mirror" "$keys" || { echo "E: Ubuntu's keys could not be fetched"; return 1; }
  fi
  # debootstrap of Debian 12 does not know noble, whose script is that of all later than gutsy.
  debootstrap --variant=minbase --components=main,universe --keyring="$keys" --include=ca-certificates \
    noble "$2" "$mirror" /usr/share/debootstrap/scripts/gutsy
}

# What this machine needs to reach its mirrors.
copy_network_settings() {
  local root=$1
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/hosts "$root/etc/hosts"
  apt-config dump | grep -E '^Acquire::(http|https|Retries|Check-Valid-Until)' > "$root/etc/apt/apt.conf.d/90host"
  [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
  [ ! -d /usr/local/share/ca-certificates ] || cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  chroot "$root" update-ca-certificates
}

# Runs a command in a root; its mounts and processes end with it.
in_root() {
  local root=$1 settings=() name
  shift
  for name in $(compgen -e | grep -E '^PIP_|_(proxy|PROXY)$' | grep -v '^PIP_FIND_LINKS$'); do settings+=("$name=${!name}"); done
  unshare --mount --pid --fork --kill-child bash -c '
    root=$1; shift
    mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || exit 1
    exec chroot "$root" "$@"' bash "$root" \
    env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
    "${settings[@]}" "$@"
}

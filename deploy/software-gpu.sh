#!/bin/sh
# Unpack Mesa's software GPU (llvmpipe: Vulkan on the CPU) into a folder, without root, and print the
# variables with which programs use it. It has memory of its own, as a graphics card does.
#
#     eval "$(deploy/software-gpu.sh)"          # or: deploy/software-gpu.sh FOLDER
#     hetero run model.onnx -d HETERO:ORT_GGML,ORT,CPU -c 'ORT_GGML.PROVIDER_OPTIONS={"device":"gpu"}'
#
# It needs Debian or Ubuntu (apt-get, dpkg-deb) and downloads about 70 MB once.
set -eu
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/software-gpu}
mkdir -p "$folder/packages" "$folder/root" "$folder/lists/partial" "$folder/cache"
folder=$(cd "$folder" && pwd)
if [ ! -e "$folder/complete" ]; then
    options="-o APT::Sandbox::User=$(id -un)" # root's downloads run as the user _apt by default
    if [ -z "$(apt-cache show mesa-vulkan-drivers 2>/dev/null)" ]; then # no lists of packages
        options="$options -o Dir::State::Lists=$folder/lists -o Dir::Cache=$folder/cache"
        apt-get $options update >&2
    fi
    installed=$(dpkg-query -W -f '${Package}\n' | sort -u)
    packages=$(apt-cache $options depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances libvulkan1 mesa-vulkan-drivers |
        grep '^[a-z]' | cut -d: -f1 | sort -u | grep -vxF "$installed")
    (cd "$folder/packages" && apt-get $options download $packages >&2)
    for package in "$folder"/packages/*.deb; do
        dpkg-deb -x "$package" "$folder/root"
    done
    rm -r "$folder/packages" "$folder/lists" "$folder/cache"
    libraries=$(dirname "$(find "$folder/root" -name libvulkan_lvp.so)")
    sed "s#\"library_path\": \".*/#\"library_path\": \"$libraries/#;
         s#\"library_path\": \"lib#\"library_path\": \"$libraries/lib#" \
        "$folder"/root/usr/share/vulkan/icd.d/lvp_icd*.json >"$folder/driver.json"
    echo "$libraries" >"$folder/complete"
fi
echo "export LD_LIBRARY_PATH='$(cat "$folder/complete")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}'"
echo "export VK_DRIVER_FILES='$folder/driver.json'"
# ggml leaves out Vulkan devices that run on the CPU unless they are named.
echo "export GGML_VK_VISIBLE_DEVICES=0"

#!/bin/sh
# Runs the command of the image whose name a link to this file has: `docker exec CONTAINER health`.
exec /usr/bin/python3 -I -S /usr/share/imagefactory/serve "${0##*/}" "$@"

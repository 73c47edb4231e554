"""Workers in other processes and on other machines: health checks, joining, virtual Pods."""
